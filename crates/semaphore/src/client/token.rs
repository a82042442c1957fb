//! Acquires a token: the permit of a token that the broker gave. See
//! [`protocol::token`](crate::protocol::token) for the requests.

use lockkeeper_amqp::new_id;
use lockkeeper_plan::naming::LockName;

use super::error::AcquireError;
use super::facts::{fact, facts};
use super::options::AcquireOptions;
use super::permit::{Permit, PermitParts};
use super::shared::Shared;
use crate::protocol::interface::Wait;
use crate::protocol::token::client::{HeldFacts, Request, Taken, take};
use crate::session::offered;

/// Runs the whole acquisition, from the first request to the permit. Sets `existed` once
/// the token queue was found to exist.
///
/// Cancel safe: a token in flight is requeued when the connection closes.
pub async fn acquire_token(
    client: &Shared,
    lock: &LockName,
    options: &AcquireOptions,
    wait: Wait,
    existed: &mut bool,
) -> Result<Permit, AcquireError> {
    let id = new_id();
    let mut hold = client.pool.take().await?;
    offered::check(hold.connection().features, lock)?;
    hold.begin();
    let request = Request {
        connection: hold.connection(),
        lock,
        id: &id,
        identity: options.identity.as_deref().map(fact),
        priority: options.priority,
        facts: facts(&id, options),
        wait,
        existed,
    };
    let error = match take(request).await? {
        Taken::Yes(HeldFacts { held, token_id, fence, sent }) => {
            let (slot, wait_queue, record) = (None, None, None);
            let begin = PermitParts {
                id,
                fence,
                slot,
                has_number: false,
                token_id,
                hold,
                held,
                sent,
                wait_queue,
                record,
            };
            return Ok(Permit::begin(client, begin));
        }
        Taken::Full => AcquireError::Full { lock: lock.to_string(), slots: 0 },
        Taken::Missing => AcquireError::NoSlots { lock: lock.to_string() },
    };
    hold.settle();
    Err(error)
}
