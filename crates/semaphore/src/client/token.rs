//! Acquires a token: the permit of a token that the broker gave. See
//! [`protocol::token`](crate::protocol::token) for the requests.

use super::error::AcquireError;
use super::facts::{fact, facts};
use super::lock::Lock;
use super::options::AcquireOptions;
use super::permit::{Permit, PermitParts};
use crate::protocol::interface::Wait;
use crate::protocol::token::client::{HeldFacts, Request, Taken, take};
use crate::session::offered;
use lockkeeper_amqp::new_id;

impl Lock {
    /// Runs the whole acquisition, from the first request to the permit. Sets `existed` once
    /// the token queue was found to exist.
    ///
    /// Cancel safe: a token in flight is requeued when the connection closes.
    pub(super) async fn acquire_token(
        &self,
        options: &AcquireOptions,
        wait: Wait,
        existed: &mut bool,
    ) -> Result<Permit, AcquireError> {
        let id = new_id();
        let mut hold = self.shared().pool.take().await?;
        offered::check(hold.connection().features, self.name())?;
        hold.begin();
        let request = Request {
            connection: hold.connection(),
            lock: self.name(),
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
                return Ok(Permit::begin(self.shared(), begin));
            }
            Taken::Full => AcquireError::Full { lock: self.name().to_string(), slots: 0 },
            Taken::Missing => AcquireError::NoSlots { lock: self.name().to_string() },
        };
        hold.settle();
        Err(error)
    }
}
