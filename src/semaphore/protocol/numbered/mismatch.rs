//! Detects that a lock's slots belong to clients of another protocol. Both protocols with
//! numbered slots use the same slot queues, and hold a slot by a queue of their own.
//! Clients of both protocols would hold a slot at the same time without noticing.

use crate::plan::naming::{LockName, Profile, Protocol};
use crate::semaphore::amqp::probe::Prober;
use crate::semaphore::error::BrokerError;

/// Verifies that none of these slots belongs to another protocol. With protocol
/// `ExclusiveQueue`, no slot may have the holder queue of `ExclusiveConsumer`, which is
/// declared before the slot. With `ExclusiveConsumer`, no slot may be held by a `B[i]`.
/// One batch of probes. Cancel safe.
pub async fn check(
    prober: &Prober,
    lock: &LockName,
    slots: impl IntoIterator<Item = u32>,
) -> Result<(), BrokerError> {
    let (protocol, name) = match lock.protocol() {
        Protocol::ExclusiveQueue(Profile::Guideline) => {
            ("ExclusiveConsumer", Protocol::ExclusiveConsumer)
        }
        Protocol::ExclusiveConsumer => ("ExclusiveQueue", Protocol::default()),
        // Their slot queues differ from those of the other protocols.
        Protocol::ExclusiveQueue(Profile::AmqpLocksPython)
        | Protocol::Token(_)
        | Protocol::TrueMutex => return Ok(()),
    };
    let other = lock.clone().with_protocol(name);
    let queues: Vec<String> = slots.into_iter().map(|slot| other.holder_queue(slot)).collect();
    let exist = prober.exist(&queues).await?;
    match queues.into_iter().zip(exist).find(|(_, exists)| *exists) {
        Some((queue, _)) => Err(BrokerError::ProtocolMismatch { queue, protocol }),
        None => Ok(()),
    }
}
