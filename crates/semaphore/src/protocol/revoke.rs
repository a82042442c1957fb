//! Revokes a slot from its holder on request. The holder is identified immediately before
//! each effect. Authorization and reporting are up to the caller. See `closing` for
//! holders that own their connection's queues, and `exclusive_consumer` for holders that
//! obey a message.

mod closing;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, HolderFacts, describe_holders};
use tokio_util::sync::CancellationToken;

pub use self::closing::HeldBy;
use crate::error::BrokerError;
use crate::management::{Management, ManagementError};
use crate::session::access::Access;
use lockkeeper_amqp::error::AmqpError;

/// How long the management API may still list a holder that left, or its connection. Its
/// statistics are 5 s old by default.
pub const LAGS: Duration = Duration::from_millis(6500);

/// Number of attempts to find the holder in the management API, and the pause between
/// them.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// A request to revoke one slot from one holder.
#[derive(Clone, Debug)]
pub struct Revocation {
    /// The slot. `None` for a protocol without numbered slots.
    pub slot: Option<u32>,
    /// The holder's id, as returned by [`Broker::holders`](crate::Broker::holders).
    pub holder: String,
    /// The reason that is sent to the holder.
    pub reason: String,
    /// Revoke even if the holder's connection owns other objects, which are closed with
    /// it.
    pub force: bool,
    /// How long this holder is already known to hold the slot.
    pub known_for: Duration,
}

impl Revocation {
    /// How long to retry after [`RevokeError::Unsure`] before giving up. A recent holder,
    /// or the death of one, becomes known within seconds.
    pub const RETRY_FOR: Duration = Duration::from_secs(30);

    /// Retry interval in that time.
    pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);
}

/// Why no slot was revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RevokeError {
    /// The slot is free, or has another holder.
    #[error("it is not held by that holder (any more), so nothing is left to do")]
    NotHeld,
    /// The holder could not be identified reliably.
    #[error("its holder is not known reliably ({why})")]
    Unsure {
        /// The missing information.
        why: String,
    },
    /// No administrator credentials are configured.
    #[error(
        "closing a holder's connection needs the broker's administrator: set the key adminUri in the Secret of the connection, or give --admin-url to the operator (for its default connection) or to `lockkeeper semaphore revoke`"
    )]
    NoAdministrator,
    /// Closing the connection would release more than this slot.
    #[error(
        "the holder's connection {connection:?} also has {what}, which would be lost with it: to revoke nevertheless, say force"
    )]
    OwnsMore {
        /// The broker's name for the connection.
        connection: String,
        /// The other objects of the connection.
        what: String,
    },
    /// The management API failed.
    #[error(transparent)]
    Management(#[from] ManagementError),
    /// The broker refused the request or did not answer.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// A revocation that is being performed.
pub struct Revoke<'a> {
    pub access: &'a Arc<Access>,
    pub lock: &'a LockName,
    pub desired: DesiredSlots,
    pub what: &'a Revocation,
    pub cancel: &'a CancellationToken,
}

impl Revoke<'_> {
    /// Returns the requested slot.
    pub fn slot(&self) -> Result<u32, RevokeError> {
        let why = || "the request names no slot".to_owned();
        self.what.slot.ok_or_else(|| RevokeError::Unsure { why: why() })
    }

    /// Whether these facts describe the requested holder.
    pub fn is_meant(&self, facts: &HolderFacts, slot: u32) -> bool {
        let described = describe_holders(&[slot].into(), slot, 1, |_| facts.clone());
        let Some(id) = described.into_iter().next().map(|holder| holder.id) else { return false };
        // If two holders chose the same id, the second is listed with its slot as suffix.
        self.what.holder == id || self.what.holder == format!("{id}#{slot}")
    }

    /// Sleeps, and ends early if the operation is cancelled.
    pub async fn pause(&self, length: Duration) -> Result<(), RevokeError> {
        tokio::select! {
            () = self.cancel.cancelled() => Err(BrokerError::Interrupted.into()),
            () = tokio::time::sleep(length) => Ok(()),
        }
    }

    /// Asks for the holder. Retries if the management API fails, as a busy one sometimes
    /// does.
    pub async fn ask_again<'a, T>(
        &self,
        ask: impl Fn() -> BoxFuture<'a, Result<T, RevokeError>>,
    ) -> Result<T, RevokeError> {
        for _ in 1..TRIES {
            match ask().await {
                Err(RevokeError::Management(error)) => {
                    tracing::debug!(%error, lock = %self.lock, "asking for the holder again");
                }
                found => return found,
            }
            self.pause(BETWEEN_TRIES).await?;
        }
        ask().await
    }

    /// Returns an error if the operation must not continue.
    pub fn check_cancelled(&self) -> Result<(), RevokeError> {
        if self.cancel.is_cancelled() || !self.access.options.may_act.now() {
            return Err(BrokerError::Interrupted.into());
        }
        Ok(())
    }

    /// Returns the management API with an administrator's login.
    pub fn administrator(&self) -> Result<Management, RevokeError> {
        let settings = self.access.settings();
        let administrator = settings.administrator.clone().ok_or(RevokeError::NoAdministrator)?;
        let settings = RabbitmqSettings { management: Some(administrator), ..settings.clone() };
        Management::new(&settings).ok_or(RevokeError::NoAdministrator)
    }
}
impl From<AmqpError> for RevokeError {
    fn from(error: AmqpError) -> Self {
        BrokerError::from(error).into()
    }
}
