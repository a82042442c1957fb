//! A held slot, as its owner has it: looking, waiting for bad news, giving it
//! back. Watching over it is `keeper`'s.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::keeper::{Grip, LostReason, State, valid_for};
use super::moment::Moment;
use super::pool::HoldConn;
use super::records::{Publisher, replace};
use crate::plan::record::SlotRecord;
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::{Lane, Standing};
use crate::semaphore::protocol::{Hold, Waiters};

/// Whether a slot is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is, and it is among the semaphore's slots.
    Held,
    /// It is, but the semaphore was made smaller: give it back soon.
    Draining,
    /// It is not: somebody else may hold it.
    Lost,
}

/// A held slot. Dropping it gives the slot back in the background, and closes its
/// connection if that doesn't succeed (or no runtime is left to do it), which
/// frees the slot as well. [`Permit::release`] waits until it is done.
#[must_use = "a slot is given back when its permit is dropped"]
pub struct Permit {
    id: String,
    fence: Option<u64>,
    grip: Arc<Grip>,
    // Taken out when it is given back.
    held: Option<Held>,
}

/// What giving back needs.
struct Held {
    pub hold: HoldConn,
    pub keeper: JoinHandle<()>,
    pub publisher: Arc<Publisher>,
    pub wait_queue: Option<String>,
    /// The record to replace by one that says "released"; absent where there is
    /// none, or where the slot may not be called cleanly released.
    pub record: Option<(String, SlotRecord)>,
}

/// What a permit begins with.
pub(in crate::semaphore) struct Begin {
    pub id: String,
    pub fence: Option<u64>,
    pub slot: Option<u32>,
    pub token_id: Option<u64>,
    /// The connection that holds,
    pub hold: HoldConn,
    /// what it holds, and
    pub held: Box<dyn Hold>,
    /// when it was asked for: from then on it may have been ours.
    pub sent: Moment,
    /// Where a release is told.
    pub wait_queue: Option<String>,
    /// The slot's record, if it is to be called released with the slot.
    pub record: Option<(String, SlotRecord)>,
}

impl Permit {
    /// Begins to watch over what was just taken.
    pub(in crate::semaphore) fn begin(client: &Shared, begin: Begin) -> Self {
        let Begin { id, fence, slot, token_id, hold, held, sent, wait_queue, record } = begin;
        let conn = Arc::clone(hold.conn());
        let valid_for = valid_for(conn.lapin().configuration().heartbeat());
        let state = State { valid_until: sent + valid_for, draining: false, lost: None };
        let grip = Arc::new(Grip {
            conn,
            held,
            slot,
            token_id,
            valid_for,
            state: watch::Sender::new(state),
            cancelled: CancellationToken::new(),
        });
        let keeper = tokio::spawn(Arc::clone(&grip).keep(client.options.verify_interval));
        let publisher = Arc::clone(&client.publisher);
        let held = Held { hold, keeper, publisher, wait_queue, record };
        Self { id, fence, grip, held: Some(held) }
    }

    /// The record is not to be called released, for as long as the slot rests.
    pub(super) fn take_record(&mut self) -> Option<(String, SlotRecord)> {
        self.held.as_mut()?.record.take()
    }

    pub(super) fn put_record(&mut self, record: Option<(String, SlotRecord)>) {
        if let Some(held) = &mut self.held {
            held.record = record;
        }
    }

    /// The slot, from 1; `None` for a true mutex and in protocol Token, which have
    /// none.
    #[must_use]
    pub fn slot(&self) -> Option<u32> {
        self.grip.slot
    }

    /// The token's id, unique for ever in its semaphore; `None` but in protocol Token,
    /// and for a token that was not published by Lockkeeper.
    #[must_use]
    pub fn token_id(&self) -> Option<u64> {
        self.grip.token_id
    }

    /// This acquisition's id, as others see it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The fencing token: greater than that of any acquisition of this slot
    /// before. A resource that refuses what comes with a smaller one than it has
    /// seen can't be harmed by a holder that lost its slot and doesn't know it yet.
    /// `None` if the semaphore has no fencing. In protocol Token it stands for the
    /// acquisitions of this token ([`Permit::token_id`]), and a token that replaces a
    /// lost one goes on above it.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Whether the slot is surely still held, as far as can be told without asking
    /// the broker. Look before each use of what the lock guards.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let state = self.grip.state.borrow();
        state.lost.is_none() && !state.valid_until.left().is_zero()
    }

    /// Until when the slot is surely held if nothing is heard from the broker:
    /// twice the heartbeat after the last proof was sent, less a margin. Moves on
    /// with each proof.
    #[must_use]
    pub fn valid_until(&self) -> Moment {
        self.grip.state.borrow().valid_until
    }

    /// Resolves when [`Permit::valid_until`] is later than `than`, or the slot is
    /// lost. Cancel safe.
    pub async fn proved_after(&self, than: Moment) {
        let mut state = self.grip.state.subscribe();
        let newer = state.wait_for(|state| state.valid_until > than || state.lost.is_some());
        // An error would mean that the sender is gone, which we own.
        let _ = newer.await;
    }

    /// Asks the broker, on the connection that holds: its own holder queue must
    /// answer, and the slot must exist. (The source document asks only for the
    /// latter, which stays true after another client took the slot: hazard A6.)
    ///
    /// An error means that nobody knows, until [`Permit::lost`] resolves or a later
    /// call answers. Cancel safe.
    pub async fn verify(&self) -> Result<Verdict, BrokerError> {
        if !self.is_valid() {
            return Ok(Verdict::Lost);
        }
        let standing = match self.grip.verify().await {
            Ok(standing) => standing,
            // Then it is lost, and the keeper is about to hear why.
            Err(_) if !self.grip.held.is_open() => {
                self.lost().await;
                return Ok(Verdict::Lost);
            }
            Err(error) => return Err(error),
        };
        Ok(match standing {
            Standing::Held => Verdict::Held,
            Standing::WithoutSlot => Verdict::Draining,
            Standing::Gone => Verdict::Lost,
        })
    }

    /// Resolves when the slot was removed from the semaphore, which is noticed
    /// within the client's verify interval. The permit stays good, and nobody else
    /// gets the slot until it is released; the polite thing is to do that at the
    /// next unit of work. Cancel safe.
    pub async fn draining(&self) {
        let mut state = self.grip.state.subscribe();
        if state.wait_for(|state| state.draining).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when the slot is no longer surely held, with the reason. Cancel
    /// safe.
    pub async fn lost(&self) -> LostReason {
        let mut state = self.grip.state.subscribe();
        match state.wait_for(|state| state.lost.is_some()).await {
            Ok(state) => state.lost.clone().unwrap_or(LostReason::HeartbeatMissed),
            // An error would mean that the sender is gone, which we own.
            Err(_) => LostReason::HeartbeatMissed,
        }
    }

    /// Cancelled when the slot is lost.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        // A child: whoever cancels it must not seem to have lost our slot.
        self.grip.cancelled.child_token()
    }

    /// Gives the slot back and waits until the broker has confirmed it; if it
    /// doesn't, ends the connection, which frees the slot for certain (hazard A26).
    ///
    /// # Errors
    ///
    /// The reason if the slot had been lost before: somebody else may have held
    /// it meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the connection.
    pub async fn release(mut self) -> Result<(), LostReason> {
        let lost = self.grip.state.borrow().lost.clone();
        if let Some(held) = self.held.take() {
            held.give_back(&self.grip).await;
        }
        lost.map_or(Ok(()), Err)
    }
}

impl Held {
    async fn give_back(mut self, grip: &Grip) {
        self.keeper.abort();
        // Until it has ended: on a busy machine it may be in the middle of a look, and
        // would take the end of what is held for a loss, and end the connection that the
        // next permit is on.
        let _ = (&mut self.keeper).await;
        if grip.state.borrow().lost.is_some() || !self.hold.conn().is_usable() {
            return;
        }
        let waiters = match self.try_to_give_back(grip).await {
            Ok(waiters) => {
                self.hold.settle();
                waiters
            }
            Err(error) => {
                // Dropping ends the connection then.
                tracing::debug!(%error, "Slot released by closing its connection");
                Waiters::Unknown
            }
        };
        drop(self.hold);
        let Some(wait_queue) = &self.wait_queue else { return };
        match waiters {
            Waiters::NoQueue => self.publisher.missing.insert(wait_queue.clone()),
            Waiters::Count(0) => {}
            Waiters::Count(_) | Waiters::Unknown => {
                self.publisher.wake(wait_queue, grip.slot).await;
            }
        }
    }

    async fn try_to_give_back(&mut self, grip: &Grip) -> Result<Waiters, BrokerError> {
        if let Some((queue, record)) = self.record.take() {
            let mut lane = Lane::take(self.hold.conn()).await?;
            // Failing here, the slot still goes back: the next holder then believes
            // that we ended uncleanly, and waits longer than it would need to.
            let released = |newest: Option<&SlotRecord>| {
                let token = newest.map_or(record.token, |newest| newest.token.max(record.token));
                (SlotRecord { token, ..record.clone().released(now()) }, ())
            };
            if let Err(error) = replace(&mut lane, &self.publisher, &queue, released).await {
                tracing::debug!(%error, queue, "A clean release could not be recorded");
            }
        }
        // Asking for one that is missing would cost a channel each time.
        let asked = self.wait_queue.as_deref();
        let asked = asked.filter(|queue| !self.publisher.missing.contains(queue));
        grip.held.give_back(asked).await
    }
}

/// Now, as a record and a holder's facts have it: whole seconds, RFC 3339.
pub(in crate::semaphore) fn now() -> String {
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second());
    now.unwrap_or_default().to_string()
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        held.keeper.abort();
        // Without a runtime, dropping ends the connection.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let grip = Arc::clone(&self.grip);
            runtime.spawn(async move {
                // A backstop against whatever hangs without a limit of its own.
                let limit = grip.conn.operation_timeout.saturating_mul(4);
                let limit = limit.max(Duration::from_secs(1));
                let _ = tokio::time::timeout(limit, held.give_back(&grip)).await;
            });
        }
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit")
            .field("id", &self.id)
            .field("slot", &self.grip.slot)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
