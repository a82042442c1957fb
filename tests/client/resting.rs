//! The lock delay of a slot whose last holder ended uncleanly: in parts, by several
//! clients, with losses, and during changes by administrators.

use std::time::{Duration, Instant};

use lapin::options::BasicGetOptions;
use lockkeeper_plan::naming::Protocol;
use lockkeeper_plan::record::{RecordState, SlotRecord};
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{AcquireError, Client};
use lockkeeper_testkit::protocols::{At, TestLock, name, with_protocols};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::eventually;
use tokio_util::sync::CancellationToken;

use crate::client::recording::{first, publish, records, seed};
use crate::client::{any, broker, held, lock, quick, resize};

with_protocols! {
    slots {
        attempts_that_give_up_add_up_to_one_rest,
        a_rest_cut_off_in_the_middle_keeps_its_saved_progress,
        a_slot_lost_while_it_rests_is_waited_for_again,
        a_sweep_while_a_record_is_read_keeps_the_lock_delay,
        an_emptied_record_rests_clients_that_know_the_delay,
    }
}

/// Returns the record of a holder that ended uncleanly.
fn left(delay: Duration) -> SlotRecord {
    SlotRecord { holder: "gone".to_owned(), state: RecordState::Held, ..first(delay) }
}

/// Creates a lock with one slot, whose last holder ended uncleanly.
async fn abandoned(protocol: Protocol, delay: Duration) -> TestLock {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let (connection, channel) = place.channel().await;
    seed(&channel, 1, &left(delay)).await;
    connection.close(200, "seeded".into()).await.unwrap();
    place
}

async fn attempts_that_give_up_add_up_to_one_rest(protocol: Protocol) {
    let delay = Duration::from_secs(4);
    let place = abandoned(protocol, delay).await;
    let start = Instant::now();
    let mut rested = 0;
    let mut attempts = 0;
    let permit = loop {
        attempts += 1;
        assert!(attempts < 40, "the rest never ends");
        // Every other attempt is dropped instead of getting a timeout.
        let limit = Duration::from_millis(1_300);
        let lock = lock(&place);
        let options = any();
        let attempt = async {
            if attempts % 2 == 1 {
                lock.acquire_timeout(&options, limit).await
            } else {
                match tokio::time::timeout(limit, lock.acquire(&options)).await {
                    Ok(acquired) => acquired,
                    Err(_) => Err(AcquireError::Full { lock: "dropped".to_owned(), slots: 1 }),
                }
            }
        };
        match attempt.await {
            Ok(permit) => break permit,
            Err(AcquireError::Resting { slot: 1, rest, .. }) => {
                let [record] = records(&place, 1).await.try_into().unwrap();
                assert_eq!(record.state, RecordState::Held);
                assert!(record.rested >= Some(rested), "{record:?} after {rested}");
                rested = record.rested.unwrap();
                assert!(rest <= delay.saturating_sub(record.rested()) + Duration::from_millis(1));
            }
            Err(AcquireError::Full { lock, .. }) if lock == "dropped" => {
                eventually("it is given back", async || held(&place).await.is_empty()).await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
    let [record] = records(&place, 1).await.try_into().unwrap();
    assert_eq!((record.state, record.rested), (RecordState::Held, None), "it is used now");
    assert_eq!(Some(record.token), permit.fence());
    permit.release().await.unwrap();
    assert_eq!(records(&place, 1).await[0].state, RecordState::Released);
}

async fn a_rest_cut_off_in_the_middle_keeps_its_saved_progress(protocol: Protocol) {
    let hour = Duration::from_secs(3_600);
    let place = abandoned(protocol, hour).await;
    let proxy = Proxy::start().await;
    let client = Client::new(proxy.settings(place.settings()), quick());
    let remote = client.semaphore(place.lock_name());
    let resting = tokio::spawn(async move { remote.acquire(&any()).await });
    eventually("it has saved something", async || {
        records(&place, 1).await.iter().any(|record| record.rested > Some(0))
    })
    .await;
    proxy.cut();
    resting.abort();
    eventually("the broker has noticed", async || held(&place).await.is_empty()).await;
    let error = lock(&place).acquire_timeout(&any(), Duration::from_secs(1)).await.unwrap_err();
    let AcquireError::Resting { rest, .. } = error else { panic!("{error}") };
    // On a busy machine it may have lost much of its own second.
    assert!(rest + Duration::from_millis(400) < hour, "{rest:?}");
}

async fn a_slot_lost_while_it_rests_is_waited_for_again(protocol: Protocol) {
    let place = abandoned(protocol, Duration::from_secs(10)).await;
    let lock = lock(&place);
    let acquiring = tokio::spawn(async move { lock.acquire(&any()).await });
    eventually("the slot rests", async || held(&place).await == [1]).await;
    let holds = async || place.connections("hold").await;
    eventually("its connection is shown", async || !holds().await.is_empty()).await;
    for connection in holds().await {
        place.management.close_connection(&connection, "test").await;
    }
    assert!(!acquiring.is_finished(), "it was to be lost while it rests");
    let permit = acquiring.await.unwrap().expect("an acquire without a limit waits on");
    permit.release().await.unwrap();
}

async fn a_sweep_while_a_record_is_read_keeps_the_lock_delay(protocol: Protocol) {
    let delay = Duration::from_secs(3);
    let place = TestLock::create(protocol).await;
    let desired = DesiredSlots { records: Some(delay), ..DesiredSlots::new(1) };
    let sweep = async || {
        let (to, cancel) = (sweep_to(desired, 1), CancellationToken::new());
        let converged =
            broker(&place).converge(&place.lock_name(), desired, to, true, &cancel).await.unwrap();
        converged.seeded
    };
    assert_eq!(sweep().await, 1);
    let (_connection, channel) = place.channel().await;
    let queue = name().record_queue(1).unwrap();
    place.purge(&queue).await;
    publish(&channel, 1, &left(delay)).await;
    // A client that has just acquired the slot, and fails.
    let (acquirer, reader) = place.channel().await;
    let got = reader.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap();
    assert!(got.is_some());
    assert_eq!(sweep().await, 1, "it looks empty");
    acquirer.close(200, "crash".into()).await.unwrap();
    eventually("both are there", async || records(&place, 1).await.len() == 2).await;

    let start = Instant::now();
    let permit = lock(&place).acquire(&any()).await.unwrap();
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
    permit.release().await.unwrap();
    assert_eq!(records(&place, 1).await.len(), 1);
}

async fn an_emptied_record_rests_clients_that_know_the_delay(protocol: Protocol) {
    let delay = Duration::from_secs(3);
    let place = abandoned(protocol, delay).await;
    place.purge(&name().record_queue(1).unwrap()).await;
    let knows = any().with_lock_delay(delay);
    let start = Instant::now();
    let permit = lock(&place).acquire(&knows).await.unwrap();
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
    let [record] = records(&place, 1).await.try_into().unwrap();
    assert_eq!((record.delay, Some(record.token)), (3_000, permit.fence()));
    permit.release().await.unwrap();
}
