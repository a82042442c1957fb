//! A broker whose memory alarm blocks publishers (hazard A10). Uses a separate broker,
//! because the alarm blocks all of them.

use std::time::{Duration, Instant};

use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{AcquireError, Broker, BrokerError, BrokerOptions, Client, Verdict};
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::eventually;
use tokio_util::sync::CancellationToken;

use crate::client::{any, brief, name};

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_stops_no_holder_and_frees_a_dead_one_and_fails_an_acquire_in_time() {
    let server = OwnServer::rabbitmq().await;
    let settings = RabbitmqSettings::from_urls(&server.variable("AMQP_URL"), None).unwrap();
    let broker = Broker::new(settings.clone(), BrokerOptions::default());
    let desired = DesiredSlots::new(3);
    let cancel = CancellationToken::new();
    broker.converge(&name(), desired, sweep_to(desired, 0), false, &cancel).await.unwrap();

    let operation_timeout = Duration::from_secs(3);
    let short = brief().with_operation_timeout(operation_timeout);
    let client = Client::new(settings.clone(), short.clone()).semaphore(name());
    let staying = client.try_acquire(&any()).await.unwrap();
    let leaving = client.try_acquire(&any()).await.unwrap();
    let proxy = Proxy::before(&settings).await;
    let dying = Client::new(proxy.settings(settings.clone()), short).semaphore(name());
    let dying = dying.try_acquire(&any()).await.unwrap();
    server.block(true).await;

    let asked = Instant::now();
    let error = client.try_acquire(&any()).await.unwrap_err();
    let blocked = [BrokerError::Blocked];
    assert!(matches!(&error, AcquireError::Broker(error) if blocked.contains(error)), "{error:?}");
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());

    // The holding connection never published, so the broker still reads from it.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(staying.verify().await, Ok(Verdict::Held));
    leaving.release().await.unwrap();
    proxy.freeze(true);
    dying.lost().await;

    let (_connection, channel) = foreign(&settings).await;
    eventually("the broker has freed the dead one and the one given back", async || {
        let mut free = Vec::new();
        for slot in 1..=3 {
            let options = lapin::options::QueueDeclareOptions::exclusive();
            let arguments = lapin::types::FieldTable::default();
            let queue = name().holder_queue(slot).as_str().into();
            let channel = channel().await;
            if channel.queue_declare(queue, options, arguments).await.is_ok() {
                free.push(slot);
            }
        }
        free == [2, 3]
    })
    .await;
    server.block(false).await;
    assert_eq!(staying.verify().await, Ok(Verdict::Held));
}

/// Opens a connection that never publishes, and channels on it.
async fn foreign(
    settings: &RabbitmqSettings,
) -> (std::sync::Arc<lapin::Connection>, impl AsyncFn() -> lapin::Channel) {
    use secrecy::ExposeSecret;
    let url = format!(
        "amqp://{}:{}@{}:{}/%2f",
        settings.username,
        settings.password.expose_secret(),
        settings.host,
        settings.port
    );
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default());
    let connection = std::sync::Arc::new(connection.await.unwrap());
    let channels = std::sync::Arc::clone(&connection);
    (connection, async move || channels.create_channel().await.unwrap())
}
