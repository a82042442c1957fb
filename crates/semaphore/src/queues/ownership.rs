//! Whether a connection owns a slot, by passive declares of its holder queue and the slot
//! queue. This is the only proof of ownership.

use std::pin::pin;
use std::slice;
use std::time::Duration;

use futures::future::{Either, select};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lockkeeper_amqp::channel::{Channel, Refused, short};
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_amqp::lazy::LazyConnection;

use crate::error::BrokerError;

/// The result of verifying a connection's `B[i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// `B[i]` belongs to this connection and `A[i]` exists.
    Held,
    /// `B[i]` belongs to this connection and `A[i]` is gone: the slot is draining.
    WithoutSlot,
    /// `B[i]` is gone or belongs to another connection.
    Gone,
}

/// How long a holder waits for the answer about its slot queue after the one about its
/// holder queue, which is the proof that it holds the slot.
const FOR_THE_SLOT: Duration = Duration::from_secs(1);

/// Whether this connection still owns `holder` and whether `slot` exists, by passive
/// declares sent together. This is the only proof of ownership: a publish would show
/// only that some queue of that name exists. Where nothing is known of the slot, because
/// its node is down, the slot counts as existing.
pub async fn verify(
    channel: &mut Channel,
    holder: &str,
    slot: &str,
) -> Result<Ownership, BrokerError> {
    let raw = channel.raw().await?;
    channel.count_declares(2);
    let passive = QueueDeclareOptions::default().passive();
    let ours = raw.queue_declare(short(holder)?, passive, FieldTable::default());
    let exists = raw.queue_declare(short(slot)?, passive, FieldTable::default());
    // In this order: a refusal closes the channel, so the more important request must
    // have been answered before.
    let both = async {
        Ok(match select(pin!(ours), pin!(exists)).await {
            Either::Left((ours, exists)) => {
                (ours, tokio::time::timeout(FOR_THE_SLOT, exists).await.ok())
            }
            Either::Right((exists, ours)) => (ours.await, Some(exists)),
        })
    };
    let (ours, exists) = match channel.answer("to queue.declare (passive)", holder, both).await? {
        Ok(answers) => answers,
        Err(refused) => return Err(refused.error.into()),
    };
    match (ours, exists) {
        (Ok(_), Some(Ok(_))) => Ok(Ownership::Held),
        (Ok(_), Some(Err(error))) => standing_with(channel, &error, slot),
        (Ok(_), None) => {
            channel.leave_unanswered(&[slot.to_owned()]);
            Ok(Ownership::Held)
        }
        (Err(error), _) => match channel.refused(&error, holder)? {
            Refused { code: 404 | 405, .. } => Ok(Ownership::Gone),
            refused => Err(refused.error.into()),
        },
    }
}

/// Returns the ownership of a holder whose holder queue was just verified. Inspects `slot` on
/// `side`: the holder's connection runs out of channel numbers (hazard A61).
pub async fn with_slot(
    side: &LazyConnection,
    slot: &str,
    limit: Duration,
) -> Result<Ownership, BrokerError> {
    let mut channel = Channel::take(&side.get().await?).await?;
    channel.set_limit(limit);
    of_slot(&mut channel, slot).await
}

/// Returns the ownership of a holder whose slot queue could not be inspected.
fn standing_with(
    channel: &mut Channel,
    error: &lapin::Error,
    slot: &str,
) -> Result<Ownership, BrokerError> {
    match channel.refused(error, slot) {
        // The slot exists, but its node is down, or it may not be inspected.
        Err(AmqpError::NodeDown { .. }) | Ok(Refused { code: 405, .. }) => Ok(Ownership::Held),
        Ok(Refused { code: 404, .. }) => Ok(Ownership::WithoutSlot),
        Ok(Refused { error, .. }) | Err(error) => Err(error.into()),
    }
}

/// Returns the ownership of a holder whose holder queue was just verified, by a passive declare
/// of the slot queue. Where nothing is known of it, it counts as existing.
pub async fn of_slot(channel: &mut Channel, slot: &str) -> Result<Ownership, BrokerError> {
    let raw = channel.raw().await?;
    channel.count_declares(1);
    let passive = QueueDeclareOptions::default().passive();
    let looking = raw.queue_declare(short(slot)?, passive, FieldTable::default());
    let looking = async { Ok(tokio::time::timeout(FOR_THE_SLOT, looking).await) };
    match channel.answer("to queue.declare (passive)", slot, looking).await? {
        Ok(Ok(Ok(_))) => Ok(Ownership::Held),
        Ok(Ok(Err(error))) => standing_with(channel, &error, slot),
        Ok(Err(_)) => {
            channel.leave_unanswered(slice::from_ref(&slot.to_owned()));
            Ok(Ownership::Held)
        }
        Err(refused) => Err(refused.error.into()),
    }
}
