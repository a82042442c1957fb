//! More refusals than a connection has channel numbers: RabbitMQ allows 2,047, and each refusal
//! closes a channel (hazard A61).

use lockkeeper_plan::naming::Protocol;
use lockkeeper_semaphore::{AcquireError, Verdict};
use lockkeeper_testkit::protocols::{TestLock, with_protocols};

use crate::client::{any, lock, resize};

/// More than there are channel numbers.
const REFUSALS: usize = 2_100;

with_protocols! {
    slots {
        a_draining_holder_is_verified_more_often_than_there_are_channel_numbers,
        a_held_slot_is_tried_more_often_than_there_are_channel_numbers,
    }
}

async fn a_draining_holder_is_verified_more_often_than_there_are_channel_numbers(
    protocol: Protocol,
) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let permit = lock(&place).acquire(&any()).await.unwrap();
    resize(&place, 0).await;
    for _ in 0..REFUSALS {
        assert_eq!(permit.verify().await, Ok(Verdict::Draining));
    }
    resize(&place, 1).await;
    assert_eq!(permit.verify().await, Ok(Verdict::Held));
    permit.release().await.unwrap();
}

async fn a_held_slot_is_tried_more_often_than_there_are_channel_numbers(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, 1).await;
    let permit = lock(&place).acquire(&any()).await.unwrap();
    let other = lock(&place);
    for _ in 0..REFUSALS {
        let error = other.try_acquire(&any()).await.unwrap_err();
        assert!(matches!(error, AcquireError::Full { .. }), "{error}");
    }
    permit.release().await.unwrap();
    other.try_acquire(&any()).await.unwrap().release().await.unwrap();
}
