//! A handle on one virtual host of one broker: observation, waiters, holders and
//! revocations. See `converge` and `resize` for changes.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::{DesiredSlots, Observed};
use tokio_util::sync::CancellationToken;

use crate::error::BrokerError;
use crate::management::ManagementError;
use crate::management::risks::Risks;
use crate::protocol::Protocols;
use crate::protocol::holders::Holders;
use crate::protocol::interface::{AdminProtocol, LockProtocol};
use crate::protocol::mismatch::{self, Presence};
use crate::protocol::revoke::{Revocation, Revoke, RevokeError};
use crate::protocol::waiters::Waiter;
use crate::session::access::{Access, BrokerOptions};
use crate::session::identity::BrokerIdentity;

/// One virtual host of one broker, as one user. Cheap to clone. All clones share two
/// connections, which are opened on first use and reopened after a loss. One owns admin
/// mutexes and makes changes, the other one probes. (Locks of profile `AmqpLocksPython`
/// are changed over a third connection.)
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper_client::semaphore::{BrokerOptions, ResizeTo, DesiredSlots};
/// use lockkeeper_client::{Broker, LockName, RabbitmqSettings};
/// use tokio_util::sync::CancellationToken;
///
/// let settings = RabbitmqSettings::from_urls("amqp://admin:secret@rabbitmq:5672/prod", None)?;
/// let broker = Broker::new(settings, BrokerOptions::default());
/// let (lock, stop) = (LockName::new("ci.deploy")?, CancellationToken::new());
///
/// let desired = DesiredSlots::new(0); // the defaults; the number of slots is that of `ResizeTo`
/// let resized = broker.resize(&lock, ResizeTo::Exactly(5), desired, &stop).await?;
/// assert_eq!(resized.after, 5);
///
/// let seen = broker.observe(&lock, 5, 5).await?;
/// println!("{} of {} slots are held", seen.held(), seen.total());
/// for holder in broker.holders(&lock, &seen, 5, 50).await.list {
///     println!("{:?}: {}", holder.slot, holder.identity.unwrap_or(holder.id));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Broker(Arc<Handle>);

/// The state shared by all clones.
pub struct Handle {
    pub access: Arc<Access>,
    pub protocols: Protocols,
}

impl Handle {
    /// Returns the protocol of the lock.
    pub fn of(&self, lock: &LockName) -> &dyn LockProtocol {
        self.protocols.of(lock)
    }

    /// Returns the protocol of a lock that an administrator may change.
    pub fn administered(&self, lock: &LockName) -> Result<&dyn AdminProtocol, BrokerError> {
        self.protocols.administered(lock)
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The Debug output of the settings contains no password.
        f.debug_tuple("Broker").field(self.0.access.settings()).finish()
    }
}

impl Broker {
    /// Creates a handle. It connects on first use.
    #[must_use]
    pub fn new(settings: RabbitmqSettings, options: BrokerOptions) -> Self {
        let access = Arc::new(Access::new(settings, options));
        let protocols = Protocols::new(&access);
        Self(Arc::new(Handle { access, protocols }))
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.0
    }

    /// Whether a management API is configured, which provides holders' facts and owners.
    #[must_use]
    pub fn has_management(&self) -> bool {
        self.0.access.management.is_some()
    }

    /// Logs in unless a connection is open. Success proves that the broker accepts the
    /// user, the password and the virtual host. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn log_in(&self) -> Result<(), BrokerError> {
        self.0.access.probe_connection().get().await.map(drop).map_err(BrokerError::from)
    }

    /// Returns whether `lock` exists, and whether it has a slot 1 that a client could take.
    /// Takes no admin mutex and changes nothing. Cancel safe.
    ///
    /// # Errors
    ///
    /// * [`BrokerError::ProtocolMismatch`] if the lock is one of another protocol.
    /// * Otherwise the broker can't be reached, does not answer in time, or rejects the
    ///   request.
    pub async fn presence(&self, lock: &LockName) -> Result<Presence, BrokerError> {
        let found = mismatch::find(self.handle().access.probe_context(), lock, 1).await;
        self.named(found).await
    }

    /// Verifies that no queue of the lock's name belongs to another protocol, given the
    /// observed slots. Changes nothing. A list that is up to
    /// [`BrokerOptions::list_interval`](super::super::BrokerOptions::list_interval) old may
    /// show that there is none. Cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`Broker::presence`].
    pub async fn check_protocol(
        &self,
        lock: &LockName,
        seen: &Observed,
    ) -> Result<(), BrokerError> {
        let access = &self.handle().access;
        if let Some(listed) = access.listed(None).await
            && !listed.shows_another_protocol(lock)
        {
            return Ok(());
        }
        let none = BTreeSet::new();
        let existing = seen.numbered().map_or(&none, |seen| &seen.slots);
        let checked = mismatch::check(access, lock, existing, seen.size()).await;
        self.named(checked).await
    }

    /// Returns the broker's description of itself. Logs in as well. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn identity(&self) -> Result<BrokerIdentity, BrokerError> {
        self.0.access.identity().await
    }

    /// Checks that the management API answers for the virtual host, if one is configured.
    ///
    /// # Errors
    ///
    /// [`ManagementError`]: it does not, so nothing is read from it.
    pub async fn check_management(&self) -> Result<(), ManagementError> {
        let Some(management) = &self.0.access.management else { return Ok(()) };
        management.queues_matching("^$").await.map(drop)
    }

    /// Observes which of the slots 1 to `slots_to` exist and which of 1 to `holders_to`
    /// have a holder. Takes no admin mutex and changes nothing.
    ///
    /// If a single answer is in doubt, the whole call fails. A queue whose node is down
    /// looks missing. [`Broker::converge`] detects that before it changes anything.
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn observe(
        &self,
        lock: &LockName,
        slots_to: u32,
        holders_to: u32,
    ) -> Result<Observed, BrokerError> {
        let seen = self.0.of(lock).observe(&self.0.access, lock, slots_to, holders_to).await;
        self.named(seen).await
    }

    /// Finds the high-water mark of a lock without recorded state. Probes upwards until 2
    /// × `overshoot` slots in a row have neither slot nor holder queue. Starts from the
    /// highest slot of its queues in the management API's list, if there is one. At most
    /// [`MAX_SLOTS`](lockkeeper_plan::naming::MAX_SLOTS). `None` in protocol Token: a token has
    /// no number. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn find_highest_slot(
        &self,
        lock: &LockName,
        overshoot: u32,
    ) -> Result<Option<u32>, BrokerError> {
        let mark = self.0.of(lock).find_highest_slot(&self.0.access, lock, overshoot).await;
        self.named(mark).await
    }

    /// Like [`Broker::find_highest_slot`], but a lock that has no queue in the management API's
    /// list is assumed to be new, without probes. For [`Broker::converge`] only, which
    /// probes the slots anyway, and searches further if the list turns out to be wrong.
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`Broker::find_highest_slot`].
    pub async fn find_mark_for_change(
        &self,
        lock: &LockName,
        overshoot: u32,
    ) -> Result<Option<u32>, BrokerError> {
        let mark = self.0.of(lock).find_mark_for_change(&self.0.access, lock, overshoot).await;
        self.named(mark).await
    }

    /// Returns how many clients wait for a slot of `lock`, counted as consumers of its
    /// wait queue. `None` without a wait queue. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn waiting(&self, lock: &LockName) -> Result<Option<u32>, BrokerError> {
        self.0.of(lock).waiting(&self.0.access, lock).await
    }

    /// Describes what the broker does to a client that holds for long, if it limits that.
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn hold_limit(&self, lock: &LockName) -> Result<Option<&'static str>, BrokerError> {
        self.0.of(lock).hold_limit(&self.0.access, lock).await
    }

    /// Describes missing auxiliary queues, except the wait queue, which
    /// [`Broker::waiting`] covers. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn missing_auxiliary(
        &self,
        lock: &LockName,
        desired: DesiredSlots,
    ) -> Result<Vec<&'static str>, BrokerError> {
        self.0.of(lock).missing_auxiliary(&self.0.access, lock, desired).await
    }

    /// Wakes up to `count` waiters of `lock`, those with the highest priority first. An
    /// undelivered wake-up expires after a second. Cancel safe. The result does not show
    /// whether a waiter woke.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn wake(&self, lock: &LockName, count: u32) -> Result<(), BrokerError> {
        self.0.access.wake(lock, count).await
    }

    /// Returns the holders of the slots in `seen.held`, at most `limit` of them, in
    /// ascending order of slots. Holders above `slots` are draining.
    ///
    /// Never fails, and waits for the management API for at most half a second. Without
    /// its answer the holders have no facts. Cancel safe.
    pub async fn holders(
        &self,
        lock: &LockName,
        seen: &Observed,
        slots: u32,
        limit: usize,
    ) -> Holders {
        self.0.of(lock).holders(&self.0.access, lock, seen, slots, limit).await
    }

    /// [`Broker::observe`] for detecting drift. Slots may come from a list that is up to
    /// [`BrokerOptions::list_interval`] old. The list is not older than `since`, when the
    /// slots were last declared or observed. Drift that it shows may have been repaired in
    /// the meantime. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn sweep(
        &self,
        lock: &LockName,
        slots_to: u32,
        holders_to: u32,
        since: Option<Instant>,
    ) -> Result<Observed, BrokerError> {
        let range = (slots_to, holders_to);
        let seen = self.0.of(lock).sweep(&self.0.access, lock, range, since).await;
        self.named(seen).await
    }

    /// Returns what makes the broker unsafe for `lock`: a partition of its cluster, and
    /// policies that remove the lock's messages or queues. `None` if no management API
    /// shows the policies. Lists of nodes and policies are at most
    /// [`BrokerOptions::list_interval`] old. Cancel safe.
    pub async fn risks(&self, lock: &LockName) -> Option<Risks> {
        self.0.access.risks(lock).await
    }

    /// Names the node in an error about a node that is down.
    pub(super) async fn named<T>(&self, done: Result<T, BrokerError>) -> Result<T, BrokerError> {
        match done {
            Err(error) => Err(self.0.access.name_node(error).await),
            done => done,
        }
    }

    /// Whether each of the slots 1 to `slots` has its record queue, in profile Guideline.
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`BrokerError`]: the broker can't be reached, does not answer in time, or
    /// rejects the request.
    pub async fn has_records(&self, lock: &LockName, slots: u32) -> Result<bool, BrokerError> {
        let names: Vec<String> = (1..=slots).filter_map(|slot| lock.record_queue(slot)).collect();
        self.0.access.all_exist(&names).await
    }

    /// Lists the waiters of `lock`, in the order in which they are served. `None` without
    /// a management API. The API's list is some seconds old. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`ManagementError`]: the API can't be reached, does not answer in time, or gives an
    /// answer that can't be used.
    pub async fn waiters(&self, lock: &LockName) -> Result<Option<Vec<Waiter>>, ManagementError> {
        let Some(management) = &self.0.access.management else { return Ok(None) };
        self.0.of(lock).waiters(management, lock).await.map(Some)
    }

    /// Revokes a slot if the given holder still holds it. The holder is notified if its
    /// protocol allows that. Afterwards the slot is free, or gone if it is above
    /// `desired.slots`.
    ///
    /// With protocols `ExclusiveQueue` and `Token`, the operation closes the holder's
    /// connection. This requires an administrator of the management API. With protocol
    /// `ExclusiveConsumer`, it sends a message to the holder. If the holder stays, it
    /// declares the holder queue again.
    ///
    /// Because the management API lags behind, the operation takes up to 7 s. Before it
    /// closes a connection, it waits until the holder has been known for 6.5 s
    /// ([`Revocation::known_for`]). Repeating it after an error or an interruption never
    /// evicts another holder.
    ///
    /// # Errors
    ///
    /// Nothing was revoked, except possibly when a connection was lost during the
    /// operation.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped or `cancel` fires, the holder may or may not have lost
    /// the slot.
    pub async fn revoke(
        &self,
        lock: &LockName,
        desired: DesiredSlots,
        what: &Revocation,
        cancel: &CancellationToken,
    ) -> Result<(), RevokeError> {
        let revoke = Revoke { access: &self.0.access, lock, desired, what, cancel };
        self.0.of(lock).revoke(&revoke).await?;
        // A holder that lost its slot wakes no waiter.
        if let Err(error) = self.wake(lock, 1).await {
            tracing::debug!(%error, "no waiter was woken");
        }
        Ok(())
    }
}
