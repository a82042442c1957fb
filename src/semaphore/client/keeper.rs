//! Watching over a held slot: proving it again and again, and telling when it
//! drains or is lost, never later than the broker may give it to another. What a
//! permit lets its owner do is `permit`'s.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use lapin::{ErrorKind, Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::moment::Moment;
use crate::plan::clean_text;
use crate::semaphore::connect::Conn;
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::Standing;
use crate::semaphore::protocol::{Hold, News};

/// What an administrator writes first into the reason of a forced close, so that
/// the holder can tell it from any other.
const REVOKED: &str = "revoked";

/// How long a connection that ended is listened to for why.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Why a slot is no longer surely held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The connection that held it ended, and the broker has freed the slot.
    #[error("the connection that held it was closed ({text})")]
    ConnectionClosed {
        /// The broker's words, or the network's.
        text: String,
    },
    /// Nobody could prove in time that it is still held: the broker or the network
    /// is silent, or this process was stopped.
    #[error(
        "its holder and the broker did not hear from each other in time: the broker may have freed it"
    )]
    HeartbeatMissed,
    /// The broker answers, but what the slot was held by is gone, or another's.
    #[error("what it was held by is gone from the broker, or is another's")]
    VerifyFailed,
    /// An administrator took it away.
    #[error("an administrator took it away ({text})")]
    Revoked {
        /// The reason given.
        text: String,
    },
}

impl LostReason {
    /// Its name for logs and metrics: the variant's.
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

    /// A forced close carries the administrator's words after the broker's code.
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

/// What is known of a held slot at one time.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Surely held until then.
    pub valid_until: Moment,
    pub draining: bool,
    pub lost: Option<LostReason>,
}

/// A held slot, as its keeper and its permit share it.
pub(super) struct Grip {
    pub conn: Arc<Conn>,
    /// What is held on it.
    pub held: Box<dyn Hold>,
    pub slot: Option<u32>,
    pub token_id: Option<u64>,
    /// How long after an operation was sent that proved the slot to be ours the
    /// broker can't have given it to another.
    pub valid_for: Duration,
    pub state: watch::Sender<State>,
    pub cancelled: CancellationToken,
}

/// How long a slot is surely ours after an operation that proved it was sent. The
/// broker frees a silent holder after 2 to 3 heartbeats (2.13 to 2.94 measured);
/// 2, less 2 % for clocks that drift and a margin for whoever acts on the answer.
/// Without heartbeats the broker waits for TCP alone, so nothing can be promised
/// beyond an ordinary one.
pub(super) fn valid_for(heartbeat_seconds: u16) -> Duration {
    let heartbeat =
        Duration::from_secs(if heartbeat_seconds == 0 { 10 } else { heartbeat_seconds.into() });
    let margin = (heartbeat / 4).min(Duration::from_millis(500));
    (heartbeat * 2 * 49 / 50).saturating_sub(margin)
}

impl Grip {
    /// Asks the broker on the connection that holds, and takes note of the answer.
    /// Waits for it as long as the slot is surely ours.
    pub async fn verify(&self) -> Result<Standing, BrokerError> {
        let left = self.state.borrow().valid_until.left();
        let sent = Moment::now();
        let standing = self.held.verify(left).await?;
        match standing {
            Standing::Gone => self.lose(LostReason::VerifyFailed),
            standing => {
                self.state.send_modify(|state| {
                    state.valid_until = state.valid_until.max(sent + self.valid_for);
                    state.draining = standing == Standing::WithoutSlot;
                });
            }
        }
        Ok(standing)
    }

    /// The slot is not surely ours any more; the first reason is kept.
    pub fn lose(&self, reason: LostReason) {
        self.state.send_if_modified(|state| {
            if state.lost.is_some() {
                return false;
            }
            // Before anybody hears of it: whatever happened, nothing of ours must
            // stay there.
            self.conn.kill();
            self.cancelled.cancel();
            state.lost = Some(reason);
            true
        });
    }

    /// Why the connection ended, given its last words.
    fn reason(&self, error: Option<lapin::Error>) -> LostReason {
        if self.state.borrow().valid_until.left().is_zero() {
            return LostReason::HeartbeatMissed;
        }
        match (self.conn.failure(), error) {
            // Found by an operation of ours, which may have ended it.
            (Some(failure), _) => LostReason::from_error(&failure),
            (None, Some(error)) if matches!(error.kind(), ErrorKind::MissingHeartbeatError) => {
                LostReason::HeartbeatMissed
            }
            // Of the channel that it was held on.
            (None, Some(error)) if error.is_amqp_soft_error() => match error.kind() {
                ErrorKind::ProtocolError(refusal) if refusal.get_id() != 404 => {
                    LostReason::closed(refusal.get_message().as_str())
                }
                _ => LostReason::VerifyFailed,
            },
            (None, Some(error)) => LostReason::from_error(&BrokerError::operating(&error, "")),
            (None, None) => LostReason::closed("without a word"),
        }
    }

    /// Loses the slot for what the broker says last, else for `error`.
    async fn hear_out(
        &self,
        events: &mut (impl Stream<Item = Event> + Unpin),
        error: Option<lapin::Error>,
    ) {
        let last = tokio::time::timeout(LAST_WORDS, last_words(events, &*self.held)).await;
        self.lose(self.reason(last.ok().flatten().or(error)));
    }

    /// Proves the slot at least every `interval` until it is lost.
    pub async fn keep(self: Arc<Self>, interval: Duration) {
        let mut events = Box::pin(self.conn.lapin().events_listener());
        // Not zero, which would be no interval.
        let interval = interval.min(self.valid_for / 4).max(Duration::from_millis(10));
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The claim was a proof itself.
        ticks.tick().await;
        while self.state.borrow().lost.is_none() {
            if !self.conn.is_usable() {
                // Its last words come first, if there are any.
                return self.hear_out(&mut events, None).await;
            }
            let deadline = self.state.borrow().valid_until;
            let proof = async {
                ticks.tick().await;
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
                    // The connection's last words tell more, if it was that.
                    News::Ended(error) => return self.hear_out(&mut events, error).await,
                },
                proof = proof => {
                    if let Err(error) = proof {
                        tracing::debug!(%error, "A held slot could not be proved");
                    }
                }
            }
        }
    }
}

/// The error that ended the connection, or the channel that `held` is on; those that
/// ended another channel are only how the broker says no.
async fn last_words(
    events: &mut (impl Stream<Item = Event> + Unpin),
    held: &dyn Hold,
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
    fn a_revocation_is_told_from_any_other_forced_close() {
        let revoked = LostReason::closed("CONNECTION_FORCED - revoked: alice rolls back");
        assert_eq!(revoked, LostReason::Revoked { text: "alice rolls back".to_owned() });
        let shutdown =
            "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
        let closed = LostReason::ConnectionClosed { text: shutdown.to_owned() };
        assert_eq!(LostReason::closed(shutdown), closed);
    }
}
