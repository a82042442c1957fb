//! A held slot from its owner's view: check it, wait for its loss, release it. See
//! `heartbeat` for how it is watched.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_amqp::channel::Channel;
use lockkeeper_net::clock::Moment;
use lockkeeper_plan::record::SlotRecord;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::heartbeat::{LostReason, PermitState, State, valid_for};
use super::held::Held;
use super::next_waiter::NextWaiter;
use super::pool::HoldConnection;
use super::records::replace;
use super::shared::Shared;
use super::stoppable::Stoppable;
use crate::error::BrokerError;
use crate::protocol::hold::HeldClaim;
use crate::queues::ownership::Ownership;

/// How long to wait for the close reason of a connection that ended.
const REASON: Duration = Duration::from_secs(1);

/// Whether a slot is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The slot is held, and belongs to the semaphore.
    Held,
    /// The slot is held, but the semaphore was made smaller: release it soon.
    Draining,
    /// The slot is lost: another client may hold it.
    Lost,
}

/// A held slot. Dropping it releases the slot in the background. If that fails, or no
/// runtime is left, it closes the connection, which frees the slot as well.
/// [`Permit::release`] waits for the confirmation.
///
/// ```no_run
/// # async fn run(permit: lockkeeper_client::Permit) -> Result<(), Box<dyn std::error::Error>> {
/// // Where the lock has fencing: storage rejects a write with an older token.
/// let token = permit.fence();
/// for batch in 1..=100 {
///     if !permit.is_valid() {
///         return Err("another client may hold the lock now".into());
///     }
///     write(batch, token).await;
/// }
/// permit.release().await?;
/// # Ok(())
/// # }
/// # async fn write(batch: u32, token: Option<u64>) {}
/// ```
#[must_use = "a slot is given back when its permit is dropped"]
pub struct Permit {
    id: String,
    fence: Option<u64>,
    inner: Arc<PermitState>,
    // `None` after the release.
    held: Option<Held>,
}

/// The parameters of a new permit.
pub struct PermitParts {
    pub id: String,
    pub fence: Option<u64>,
    /// `None` for a token.
    pub slot: Option<u32>,
    /// Whether the slot's number is shown. A mutex has only one slot.
    pub has_number: bool,
    pub token_id: Option<u64>,
    /// The connection that holds the slot.
    pub hold: HoldConnection,
    /// The held object.
    pub held: Box<dyn HeldClaim>,
    /// When the slot was requested. It may have been held from then on.
    pub sent: Moment,
    /// The wait queue to notify on release.
    pub wait_queue: Option<String>,
    /// The slot's record and its queue. `None` if the slot has no record.
    pub record: Option<(String, SlotRecord)>,
}

impl Permit {
    /// Creates the permit of a slot that was just taken, and starts its keeper.
    pub(super) fn begin(client: &Shared, begin: PermitParts) -> Self {
        let PermitParts { id, fence, slot, has_number, token_id, .. } = begin;
        let PermitParts { hold, held, sent, wait_queue, record, .. } = begin;
        let connection = Arc::clone(hold.connection());
        let valid_for = valid_for(connection.lapin().configuration().heartbeat());
        let next = wait_queue.as_deref().zip(slot).map(|(queue, slot)| {
            Arc::new(NextWaiter::new(&client.publisher, queue, slot, &id, has_number))
        });
        let state = State { valid_until: sent + valid_for, draining: false, lost: None };
        let inner = Arc::new(PermitState {
            connection,
            held,
            slot,
            has_number,
            token_id,
            valid_for,
            state: watch::Sender::new(state),
            cancelled: CancellationToken::new(),
            next,
        });
        let keeper = Stoppable::spawn(Arc::clone(&inner).keep(client.options.verify_interval));
        let publisher = Arc::clone(&client.publisher);
        let held = Held { hold, keeper, publisher, wait_queue, leaving: None, record };
        Self { id, fence, inner, held: Some(held) }
    }

    /// Changes the local copy of the slot's record. It is written with the next change or
    /// on release.
    pub(super) fn note(&mut self, change: impl FnOnce(SlotRecord) -> SlotRecord) {
        let record = self.held.as_mut().and_then(|held| held.record.as_mut());
        if let Some((_, record)) = record {
            *record = change(record.clone());
        }
    }

    /// The task that leaves the wait queue. A release waits for it before it wakes a waiter,
    /// because it would wake this one.
    pub(super) fn leaving(&mut self, leaving: Option<JoinHandle<()>>) {
        if let Some(held) = &mut self.held {
            held.leaving = leaving;
        }
    }

    /// Where this permit keeps the wake-up by which it was acquired.
    pub(super) fn next_waiter(&self) -> Option<Arc<NextWaiter>> {
        self.inner.next.clone()
    }

    /// Writes the slot's record, if it has one, with the changes of [`Permit::note`].
    pub(super) async fn write_record(&self) -> Result<(), BrokerError> {
        let Some(held) = &self.held else { return Ok(()) };
        let Some((queue, record)) = &held.record else { return Ok(()) };
        let mut channel = Channel::take(held.hold.connection()).await?;
        let next = |found: Option<&SlotRecord>| (record.clone().above(found), ());
        replace(&mut channel, &held.publisher, queue, next).await.map(drop)
    }

    /// Returns the slot, from 1. `None` for a true mutex and in protocol Token, which
    /// have no numbered slots.
    #[must_use]
    pub fn slot(&self) -> Option<u32> {
        self.inner.slot.filter(|_| self.inner.has_number)
    }

    /// Returns the slot that wake-ups name, which is 1 for a true mutex.
    pub(super) fn slot_to_wake(&self) -> Option<u32> {
        self.inner.slot
    }

    /// Returns the token's id, which is never reused in its semaphore. `None` except in
    /// protocol Token, and for a token that Lockkeeper did not publish.
    #[must_use]
    pub fn token_id(&self) -> Option<u64> {
        self.inner.token_id
    }

    /// Returns this acquisition's public id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the fencing token, which is greater than that of every earlier acquisition
    /// of this slot. A resource should remember the greatest token of each slot and
    /// reject smaller ones. It is then safe from holders that lost their slot without
    /// noticing. Tokens of different slots are not comparable. `None` if the semaphore
    /// has no fencing.
    ///
    /// In protocol Token, the value counts the acquisitions of this token
    /// ([`Permit::token_id`]). A token that replaces a lost one continues above it.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Whether the slot is guaranteed to be held, as far as known without asking the
    /// broker. Check this before each use of the protected resource.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.inner.is_valid()
    }

    /// Returns until when the slot is guaranteed to be held without further answers from
    /// the broker: twice the heartbeat after the last verification was sent, less a
    /// margin. Each verification moves it on.
    #[must_use]
    pub fn valid_until(&self) -> Moment {
        self.inner.state.borrow().valid_until
    }

    /// Resolves when [`Permit::valid_until`] is later than `than`, or the slot is lost.
    /// Cancel safe.
    pub async fn proved_after(&self, than: Moment) {
        let mut state = self.inner.state.subscribe();
        let newer = state.wait_for(|state| state.valid_until > than || state.lost.is_some());
        // An error would mean that the sender was dropped, but this permit owns it.
        let _ = newer.await;
    }

    /// Asks the broker on the connection that holds the slot. Its holder queue must
    /// answer, and the slot must exist. (The source document checks only the latter,
    /// which remains true after another client took the slot: hazard A6.)
    ///
    /// After an error the state is unknown until [`Permit::lost`] resolves or a later
    /// call succeeds. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn verify(&self) -> Result<Verdict, BrokerError> {
        if !self.is_valid() {
            return Ok(Verdict::Lost);
        }
        // The client may know of the loss before the request ends: lapin does not always end
        // a request that meets the end of its connection.
        let verified = tokio::select! {
            verified = self.inner.verify() => verified,
            _ = self.lost() => return Ok(Verdict::Lost),
        };
        let ownership = match verified {
            Ok(ownership) => ownership,
            // The slot is lost. The keeper is about to receive the reason.
            Err(_) if !self.inner.held.is_open() => {
                self.lost().await;
                return Ok(Verdict::Lost);
            }
            Err(error) => return Err(error),
        };
        Ok(match ownership {
            Ownership::Held => Verdict::Held,
            Ownership::WithoutSlot => Verdict::Draining,
            Ownership::Gone => Verdict::Lost,
        })
    }

    /// Resolves when the slot was removed from the semaphore, which is noticed within the
    /// client's verify interval. The permit stays valid, and no other client gets the
    /// slot before it is released. The holder should release at its next unit of work.
    /// Cancel safe.
    pub async fn draining(&self) {
        let mut state = self.inner.state.subscribe();
        if state.wait_for(|state| state.draining).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves with the reason when the slot is no longer guaranteed to be held. Cancel
    /// safe.
    pub async fn lost(&self) -> LostReason {
        let mut state = self.inner.state.subscribe();
        match state.wait_for(|state| state.lost.is_some()).await {
            Ok(state) => state.lost.clone().unwrap_or(LostReason::HeartbeatMissed),
            // An error would mean that the sender was dropped, but this permit owns it.
            Err(_) => LostReason::HeartbeatMissed,
        }
    }

    /// Returns a token that is cancelled when the slot is lost.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        // A child token: cancelling it must not look like a lost slot.
        self.inner.cancelled.child_token()
    }

    /// Releases the slot and waits for the broker's confirmation. If the broker doesn't
    /// confirm, closes the connection, which frees the slot for certain (hazard A26).
    ///
    /// # Errors
    ///
    /// The reason, if the slot had been lost before. It also counts as lost if this
    /// process was suspended for too long, because another client may have held it in the
    /// meantime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn release(mut self) -> Result<(), LostReason> {
        let lost = self.lost_by_now().await;
        if let Some(held) = self.held.take() {
            held.give_back(&self.inner).await;
        }
        lost.map_or(Ok(()), Err)
    }

    /// Returns why the slot is no longer guaranteed to be held, if so.
    async fn lost_by_now(&self) -> Option<LostReason> {
        if self.is_valid() {
            return None;
        }
        self.inner.expire();
        // The keeper is about to receive the close reason.
        let reason = tokio::time::timeout(REASON, self.lost()).await;
        Some(reason.unwrap_or(LostReason::HeartbeatMissed))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        held.keeper.stop();
        // Without a runtime, dropping closes the connection.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let inner = Arc::clone(&self.inner);
            runtime.spawn(async move {
                // A backstop for operations without a limit of their own.
                let limit = inner.connection.operation_timeout.saturating_mul(4);
                let limit = limit.max(Duration::from_secs(1));
                let _ = tokio::time::timeout(limit, held.give_back(&inner)).await;
            });
        }
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit")
            .field("id", &self.id)
            .field("slot", &self.slot())
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
