//! Revokes a slot by a message to the consumer that holds it. See `closing` for the other
//! protocols.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use lockkeeper_plan::semaphore::HolderFacts;

use super::administering::revoke_message;
use crate::management::read;
use crate::protocol::revoke::{LAGS, Revoke, RevokeError};
use crate::queues::{holder, wait};
use crate::session::change::Change;

/// Interval between checks whether a notified holder has released.
const LEAVES: Duration = Duration::from_millis(100);

/// Sends a message to the holder. If the holder stays, declares its queue again.
pub async fn revoke(revoke: &Revoke<'_>) -> Result<(), RevokeError> {
    let slot = revoke.slot()?;
    let queue = revoke.lock.holder_queue(slot);
    let own_id = consumes(revoke, &queue, slot).await?.ok_or(RevokeError::NotHeld)?;
    revoke.check_cancelled()?;
    let mut channel = revoke.access.publisher().await?;
    let message = revoke_message(&revoke.what.reason);
    // Only the holder named in the message obeys. The API may not list its successor
    // yet.
    wait::send(&mut channel, &queue, message.as_bytes(), 1, own_id.as_deref()).await?;
    let told = tokio::time::Instant::now();
    while told.elapsed() < LAGS {
        match channel.consumers(&queue).await? {
            None | Some(0) => return Ok(()),
            Some(_) => revoke.pause(LEAVES).await?,
        }
    }
    if consumes(revoke, &queue, slot).await?.is_none() {
        return Ok(());
    }
    let access = Arc::clone(revoke.access);
    let change = Change::new(access, revoke.lock.clone(), revoke.desired, revoke.cancel);
    let (what, cancel) = (revoke.what.clone(), revoke.cancel.clone());
    let taken = change.run(move |change, channel| {
        async move {
            // Check again: the holder may have left while the mutex was awaited.
            let (access, lock, desired) = (&change.access, &change.lock, change.desired);
            let again = Revoke { access, lock, desired, what: &what, cancel: &cancel };
            match consumes(&again, &queue, slot).await {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
            change.check_cancelled(channel)?;
            channel.delete(&queue).await?;
            if slot <= desired.slots {
                holder::declare(channel, &queue).await?;
            }
            Ok(Ok(()))
        }
        .boxed()
    });
    taken.await?
}

/// Whether the requested holder consumes from the queue, according to the management
/// API. Returns the id that the holder chose, if any.
///
/// # Errors
///
/// [`RevokeError::Unsure`] if the API does not list the consumer that the queue has.
async fn consumes(
    revoke: &Revoke<'_>,
    queue: &str,
    slot: u32,
) -> Result<Option<Option<String>>, RevokeError> {
    let management = match &revoke.access.management {
        Some(management) => Arc::clone(management),
        None => Arc::new(revoke.administrator().map_err(|_| {
            let why = "without managementUri the consumer is unknown".to_owned();
            RevokeError::Unsure { why }
        })?),
    };
    let consumers =
        revoke.ask_again(|| async { Ok(management.consumers().await?) }.boxed()).await?;
    for consumer in consumers {
        if consumer.queue.name != queue || !consumer.exclusive {
            continue;
        }
        let given = read(&consumer.arguments);
        let connection = match consumer.connection() {
            Some(name) => Some(management.owner(name).await.connection),
            None => None,
        };
        let id = given.id.clone();
        let facts = HolderFacts { connection, ..given };
        return Ok(revoke.is_meant(&facts, slot).then_some(id));
    }
    match revoke.access.publisher().await?.consumers(queue).await? {
        None | Some(0) => Ok(None),
        Some(_) => {
            let why = "the management API does not list its consumer, which is there".to_owned();
            Err(RevokeError::Unsure { why })
        }
    }
}
