//! Clients of two protocols on the same lock.

use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_semaphore::{AcquireError, BrokerError, Client, ClientOptions, Expected, Fault};
use lockkeeper_testkit::protocols::name;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually, within};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::client::{SOON, any, broker};

const BOTH: [Protocol; 2] = [
    Protocol::ExclusiveQueue(lockkeeper_plan::naming::Profile::Guideline),
    Protocol::ExclusiveConsumer,
];

fn calm() -> ClientOptions {
    ClientOptions::default().with_warm(0)
}

async fn make(vhost: &Vhost, lock: &LockName) -> Result<(), BrokerError> {
    let (desired, cancel) = (DesiredSlots::new(1), CancellationToken::new());
    broker(vhost).converge(lock, desired, sweep_to(desired, 1), true, &cancel).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_two_protocols_never_hold_a_slot_together() {
    for (made, other) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        let vhost = Vhost::create().await;
        let [lock, wrong] = [made, other].map(|protocol| name().with_protocol(protocol));
        make(&vhost, &lock).await.unwrap();
        let client = Client::new(vhost.settings(), calm());
        let permit = client.semaphore(lock.clone()).try_acquire(&any()).await.unwrap();
        // As an administrator of the other protocol would have created it.
        if other == Protocol::ExclusiveConsumer {
            let arguments = json!({"x-max-length": 0, "x-queue-type": "classic"});
            let ours = json!({"durable": true, "arguments": arguments});
            vhost.declare(&wrong.holder_queue(1), ours).await;
        }
        let refused = Client::new(vhost.settings(), calm()).semaphore(wrong.clone());
        let refused = refused.try_acquire(&any()).await.unwrap_err();
        let AcquireError::Broker(BrokerError::ProtocolMismatch { queue, protocol }) = refused
        else {
            panic!("{refused:?}")
        };
        assert_eq!(queue, lock.holder_queue(1));
        assert_eq!(protocol, format!("{made:?}").split('(').next().unwrap());
        let error = make(&vhost, &wrong).await.unwrap_err();
        assert_eq!(error.reason(), "ProtocolMismatch");
        let cancel = CancellationToken::new();
        let faults = broker(&vhost).check(&wrong, Expected::default(), &cancel).await.unwrap();
        assert!(matches!(faults[..], [Fault::OtherProtocol { .. }]), "{faults:?}");
        assert!(permit.is_valid());
        permit.release().await.unwrap();
        eventually("no client holds it", async || {
            broker(&vhost).observe(&lock, 1, 1).await.unwrap().held() == 0
        })
        .await;
    }
}

/// A client relies on its last check for a short time only.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_soon_rejects_a_lock_that_was_created_again_with_another_protocol() {
    for (made, other) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        let vhost = Vhost::create().await;
        let [lock, wrong] = [made, other].map(|protocol| name().with_protocol(protocol));
        make(&vhost, &lock).await.unwrap();
        let client = Client::new(vhost.settings(), calm()).semaphore(lock.clone());
        client.try_acquire(&any()).await.unwrap().release().await.unwrap();
        let (none, cancel) = (DesiredSlots::new(0), CancellationToken::new());
        broker(&vhost).destroy(&lock, none, None, &cancel).await.unwrap();
        make(&vhost, &wrong).await.unwrap();
        within(SOON, "it is rejected", async || match client.try_acquire(&any()).await {
            Ok(permit) => {
                permit.release().await.unwrap();
                false
            }
            Err(error) => {
                matches!(error, AcquireError::Broker(BrokerError::ProtocolMismatch { .. }))
            }
        })
        .await;
    }
}
