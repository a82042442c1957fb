//! Watches over a held slot: verifies it periodically, and reports when it is draining or
//! lost. A loss is reported before the broker can give the slot to another client. See
//! `permit` for the public API.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use lapin::{ErrorKind, Event};
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_net::clock::Moment;
use lockkeeper_plan::clean_text;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::next_waiter::NextWaiter;
use crate::error::BrokerError;
use crate::protocol::hold::{HeldClaim, News};
use crate::queues::ownership::Ownership;

/// Prefix of the reason by which an administrator revokes a slot with a forced close. It
/// distinguishes a revocation from other closes.
const REVOKED: &str = "revoked";

/// The first verification follows after this part of the interval, and each further one
/// after twice the time. A slot can be lost directly after the claim (hazard A49).
const SOON: u32 = 20;

/// How long to wait for the close reason of a channel, or of a connection that the broker has
/// not closed. lapin reports the end first, and the reason only when it has answered the broker.
/// Less than the second that the permit's user waits for the loss.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why a slot is no longer guaranteed to be held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The connection that held the slot was closed, and the broker has freed the slot.
    #[error("the connection that held it was closed ({text})")]
    ConnectionClosed {
        /// The reason given by the broker or the network.
        text: String,
    },
    /// The slot was not verified in time. The broker or the network is silent, or this
    /// process was suspended.
    #[error("no heartbeat or verification succeeded in time: the broker may have freed it")]
    HeartbeatMissed,
    /// The broker answers, but the object that held the slot is gone or has another
    /// owner.
    #[error("its queue is gone from the broker, or belongs to another client")]
    VerifyFailed,
    /// An administrator revoked the slot.
    #[error("an administrator revoked it ({text})")]
    Revoked {
        /// The reason given.
        text: String,
    },
}

impl LostReason {
    /// Returns the name of the variant, for logs and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::ConnectionClosed { .. } => "ConnectionClosed",
            Self::HeartbeatMissed => "HeartbeatMissed",
            Self::VerifyFailed => "VerifyFailed",
            Self::Revoked { .. } => "Revoked",
        }
    }

    fn from_error(error: &BrokerError) -> Self {
        match error {
            BrokerError::Timeout { .. } => Self::HeartbeatMissed,
            BrokerError::ConnectionLost { why } | BrokerError::MutexLost { why } => {
                Self::closed(why)
            }
            error => Self::closed(&error.to_string()),
        }
    }

    /// Parses a close reason. In a forced close, the administrator's text follows the
    /// broker's code.
    fn closed(text: &str) -> Self {
        let text = clean_text(text, 512);
        let given = text.strip_prefix("CONNECTION_FORCED - ").unwrap_or(&text);
        match given.strip_prefix(REVOKED) {
            Some(reason) => {
                Self::Revoked { text: reason.trim_start_matches([':', ' ']).to_owned() }
            }
            None => Self::ConnectionClosed { text },
        }
    }
}

/// The state of a held slot.
#[derive(Clone, Debug)]
pub struct State {
    /// The slot is guaranteed to be held until then.
    pub valid_until: Moment,
    pub draining: bool,
    pub lost: Option<LostReason>,
}

/// A held slot, shared by its keeper and its permit.
pub struct PermitState {
    pub connection: Arc<Connection>,
    /// The object held on the connection.
    pub held: Box<dyn HeldClaim>,
    pub slot: Option<u32>,
    /// Whether the slot's number is shown.
    pub has_number: bool,
    pub token_id: Option<u64>,
    /// How long the slot is guaranteed after a successful verification was sent. The
    /// broker can't give it to another client within this time.
    pub valid_for: Duration,
    pub state: watch::Sender<State>,
    pub cancelled: CancellationToken,
    /// `None` if the lock has no wait queue.
    pub next: Option<Arc<NextWaiter>>,
}

/// Returns how long a slot is guaranteed after a successful verification was sent. The
/// broker frees a silent holder after 2 to 3 heartbeats (2.13 to 2.94 measured). The
/// result is 2 heartbeats, less 2 % for clock drift and a margin for acting on it.
/// Without heartbeats the broker relies on TCP alone, so the result is that of the
/// default heartbeat, 10 s.
pub fn valid_for(heartbeat_seconds: u16) -> Duration {
    let heartbeat =
        Duration::from_secs(if heartbeat_seconds == 0 { 10 } else { heartbeat_seconds.into() });
    let margin = (heartbeat / 4).min(Duration::from_millis(500));
    (heartbeat * 2 * 49 / 50).saturating_sub(margin)
}

impl PermitState {
    /// Whether the slot is guaranteed to be held, without asking the broker. The
    /// connection must be open and the last verification recent enough.
    pub fn is_valid(&self) -> bool {
        let state = self.state.borrow();
        state.lost.is_none()
            && !state.valid_until.left().is_zero()
            && self.connection.is_usable()
            && self.held.is_open()
    }

    /// Marks the slot as lost if its validity has passed. After a suspension of the
    /// process all timers are due together, so the keeper may not have noticed yet.
    pub fn expire(&self) {
        if self.state.borrow().valid_until.left().is_zero() {
            self.lose(LostReason::HeartbeatMissed);
        }
    }

    /// Asks the broker on the connection that holds the slot, and records the answer.
    /// Waits at most until the slot's validity ends.
    pub async fn verify(&self) -> Result<Ownership, BrokerError> {
        let left = self.state.borrow().valid_until.left();
        let sent = Moment::now();
        let ownership = self.held.verify(left).await?;
        match ownership {
            Ownership::Gone => self.lose(LostReason::VerifyFailed),
            ownership => {
                self.state.send_modify(|state| {
                    state.valid_until = state.valid_until.max(sent + self.valid_for);
                    state.draining = ownership == Ownership::WithoutSlot;
                });
            }
        }
        Ok(ownership)
    }

    /// Marks the slot as lost. The first reason is kept.
    pub fn lose(&self, reason: LostReason) {
        self.state.send_if_modified(|state| {
            if state.lost.is_some() {
                return false;
            }
            // Before the loss becomes visible: in any case, nothing may stay declared on
            // this connection.
            self.connection.kill();
            self.cancelled.cancel();
            state.lost = Some(reason);
            true
        });
    }

    /// Returns why the slot was lost, given the close reason of its connection or channel.
    fn reason(&self, error: Option<lapin::Error>) -> LostReason {
        if self.state.borrow().valid_until.left().is_zero() {
            return LostReason::HeartbeatMissed;
        }
        reason(self.connection.failure().map(BrokerError::from), error, self.connection.is_usable())
    }

    /// Marks the slot as lost, with the broker's close reason or else `error`. The permit
    /// is invalid immediately. Only the reason is awaited.
    async fn hear_out(
        &self,
        events: &mut (impl Stream<Item = Event> + Unpin),
        error: Option<lapin::Error>,
    ) {
        self.cancelled.cancel();
        let error = if self.connection.failure().is_some() {
            error
        } else {
            let last = tokio::time::timeout(LAST_WORDS, last_words(events, &*self.held)).await;
            last.ok().flatten().or(error)
        };
        self.lose(self.reason(error));
    }

    /// Verifies the slot soon, and then less often, but at least every `interval`, until it
    /// is lost.
    pub async fn keep(self: Arc<Self>, interval: Duration) {
        let mut events = Box::pin(self.connection.lapin().events_listener());
        // An interval must not be zero.
        let interval = interval.min(self.valid_for / 4).max(Duration::from_millis(10));
        let mut pause = interval / SOON;
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The claim itself was the first verification.
        ticks.reset_after(pause);
        while self.state.borrow().lost.is_none() {
            if !self.connection.is_usable() {
                // Read the close reason first, if there is one.
                return self.hear_out(&mut events, None).await;
            }
            let deadline = self.state.borrow().valid_until;
            let proof = async {
                ticks.tick().await;
                pause = (pause * 2).min(interval);
                ticks.reset_after(pause);
                self.verify().await
            };
            tokio::select! {
                () = deadline.reached() => return self.lose(LostReason::HeartbeatMissed),
                error = last_words(&mut events, &*self.held) => return self.lose(self.reason(error)),
                news = self.held.news() => match news {
                    News::Drain => self.state.send_modify(|state| state.draining = true),
                    News::Look => ticks.reset_immediately(),
                    News::Revoked(text) => return self.lose(LostReason::Revoked { text }),
                    News::Gone => return self.lose(LostReason::VerifyFailed),
                    // If the connection was closed, its close reason is more specific.
                    News::Ended(error) => return self.hear_out(&mut events, error).await,
                },
                proof = proof => {
                    if let Err(error) = proof {
                        tracing::debug!(%error, "A held slot could not be proved");
                    } else if let Some(next) = &self.next {
                        next.keep_one();
                    }
                }
            }
        }
    }
}

/// Returns why a slot was lost: `failure` is the broker's reason to close the connection, or that
/// of an operation of this client, whichever came first. `error` is what lapin reports, and
/// `connected` whether the connection is open.
fn reason(
    failure: Option<BrokerError>,
    error: Option<lapin::Error>,
    connected: bool,
) -> LostReason {
    match (failure, error) {
        (Some(failure), _) => LostReason::from_error(&failure),
        (None, Some(error)) if matches!(error.kind(), ErrorKind::MissingHeartbeatError) => {
            LostReason::HeartbeatMissed
        }
        // The channel on which the slot was held was closed.
        (None, Some(error)) if error.is_amqp_soft_error() => match error.kind() {
            ErrorKind::ProtocolError(refusal) if refusal.get_id() != 404 => {
                LostReason::closed(refusal.get_message().as_str())
            }
            _ => LostReason::VerifyFailed,
        },
        (None, Some(error)) => LostReason::from_error(&AmqpError::operating(&error, "").into()),
        // The broker closes only a channel if it refuses a request, here a look at a queue
        // that is gone. Its reason may come later than this client waits for it.
        (None, None) if connected => LostReason::VerifyFailed,
        (None, None) => LostReason::closed("without a word"),
    }
}

/// Returns the error that closed the connection, or the channel of `held`. Errors of
/// other channels are ordinary refusals.
async fn last_words(
    events: &mut (impl Stream<Item = Event> + Unpin),
    held: &dyn HeldClaim,
) -> Option<lapin::Error> {
    while let Some(event) = events.next().await {
        if let Event::Error(error) = event
            && (!error.is_amqp_soft_error() || !held.is_open())
        {
            return Some(error);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_never_believed_held_for_longer_than_the_broker_waits() {
        for heartbeat in 1..=600 {
            let least = Duration::from_secs(u64::from(heartbeat) * 2);
            assert!(valid_for(heartbeat) < least, "{heartbeat}");
            assert!(valid_for(heartbeat) > least / 2, "{heartbeat}");
        }
    }

    #[test]
    fn a_channel_closed_without_a_reason_is_no_closed_connection() {
        assert_eq!(reason(None, None, true), LostReason::VerifyFailed);
        let closed = LostReason::ConnectionClosed { text: "without a word".to_owned() };
        assert_eq!(reason(None, None, false), closed);
    }

    #[test]
    fn the_brokers_reason_to_close_a_connection_outweighs_what_lapin_meets_afterwards() {
        let forced = "CONNECTION_FORCED - revoked: alice rolls back".to_owned();
        let forced = BrokerError::ConnectionLost { why: forced };
        let revoked = LostReason::Revoked { text: "alice rolls back".to_owned() };
        let broken = lapin::Error::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        for met in [None, Some(broken), Some(ErrorKind::MissingHeartbeatError.into())] {
            assert_eq!(reason(Some(forced.clone()), met, false), revoked);
        }
        let timeout = BrokerError::Timeout { what: "to queue.declare", after: LAST_WORDS };
        assert_eq!(reason(Some(timeout), None, false), LostReason::HeartbeatMissed);
    }

    #[test]
    fn a_revocation_is_distinguished_from_any_other_forced_close() {
        let revoked = LostReason::closed("CONNECTION_FORCED - revoked: alice rolls back");
        assert_eq!(revoked, LostReason::Revoked { text: "alice rolls back".to_owned() });
        let shutdown =
            "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
        let closed = LostReason::ConnectionClosed { text: shutdown.to_owned() };
        assert_eq!(LostReason::closed(shutdown), closed);
    }
}
