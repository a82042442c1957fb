//! One virtual host of one broker: the handle that everything else of this room
//! hangs on, and looking without changing anything. Changing is `converge`'s.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::connect::{Conn, Connector, Endpoint};
use super::error::BrokerError;
use super::holders::{Facts, Holders};
use super::identity::{BrokerIdentity, ask_identity};
use super::lane::Lane;
use super::link::Link;
use super::listing::Listing;
use super::mutex::LocalLocks;
use super::probe::Prober;
use super::protocol::{self, Eyes, HolderSeen, Holding};
use super::token::Tokens;
use crate::plan::MayAct;
use crate::plan::connection::RabbitmqSettings;
use crate::plan::naming::{LockName, MAX_SLOTS, Profile};
use crate::plan::semaphore::{SlotWish, SlotsSeen};

/// Most semaphores changed at the same time. Each takes channels of the admin
/// connection, of which a broker allows 2,047, and every new one costs it four
/// processes; more changes than this are no faster.
const CHANGES_AT_ONCE: usize = 32;

/// Most locks looked at at the same time: enough to fill every batch of probes.
/// Further ones would only keep their queues' names in memory while they wait.
const LOOKS_AT_ONCE: usize = 128;

/// Queues looked at together, on one channel.
const LOOKED_AT_TOGETHER: usize = 500;

/// How to behave towards a broker.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// What the broker's management shows as the connections' name.
    pub client_name: String,
    /// Limit on each operation; on a batch of probes, on the whole batch.
    pub operation_timeout: Duration,
    /// Limit on TCP and the AMQP handshake together.
    pub connect_timeout: Duration,
    /// How long to try for a busy admin mutex.
    pub mutex_patience: Duration,
    /// How old the management API's list of holders may become.
    pub facts_interval: Duration,
    /// How old the management API's list of slot queues may become.
    pub list_interval: Duration,
    /// The AMQP heartbeat in seconds; absent, the broker's. Who falls silent while it
    /// holds an admin mutex loses it after two to three of them.
    pub heartbeat: Option<u16>,
    /// Asked before each effect.
    pub may_act: MayAct,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            client_name: "lockkeeper".to_owned(),
            operation_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            mutex_patience: Duration::from_secs(5),
            facts_interval: Duration::from_secs(10),
            list_interval: Duration::from_secs(20),
            heartbeat: None,
            may_act: MayAct::default(),
        }
    }
}

/// One virtual host of one broker, as one user. Cheap to clone; all clones
/// share two connections, made when first needed and made anew when they died:
/// one that owns admin mutexes and changes things, one that probes. (Locks of
/// profile `AmqpLocksPython` are changed over a third.)
#[derive(Clone)]
pub struct Broker(Arc<Inner>);

/// What all clones share.
pub(super) struct Inner {
    pub options: BrokerOptions,
    endpoint: Arc<Endpoint>,
    /// Owns the admin mutexes; everything that changes something goes over it.
    admin: Link,
    /// The same for locks of profile `AmqpLocksPython`: a broker that refuses their
    /// slots ends the whole connection, which others' changes must not suffer from.
    admin_python: Link,
    probe_link: Arc<Link>,
    probes: Prober,
    pub local_locks: LocalLocks,
    /// Turns to look.
    looks: tokio::sync::Semaphore,
    /// Turns to change something.
    pub turns: Arc<tokio::sync::Semaphore>,
    /// Locks whose last change lost its connection with effects in flight.
    disturbed: Mutex<HashSet<LockName>>,
    identity: Mutex<Option<(Weak<Conn>, BrokerIdentity)>>,
    pub facts: Arc<Facts>,
    pub listing: Listing,
    /// What is known of locks of protocol Token.
    pub tokens: Tokens,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings' Debug shows no password.
        f.debug_tuple("Broker").field(&self.0.endpoint.settings).finish()
    }
}

impl Broker {
    /// Connects nothing and starts nothing.
    #[must_use]
    pub fn new(settings: RabbitmqSettings, options: BrokerOptions) -> Self {
        let facts = Arc::new(Facts::new(&settings, options.facts_interval));
        let endpoint = Arc::new(Endpoint {
            settings,
            client_name: options.client_name.clone(),
            connect_timeout: options.connect_timeout,
            operation_timeout: options.operation_timeout,
            heartbeat: options.heartbeat,
            connector: Connector::default(),
        });
        let probe_link = Arc::new(Link::new(Arc::clone(&endpoint), "probe"));
        Self(Arc::new(Inner {
            options,
            admin: Link::new(Arc::clone(&endpoint), "admin"),
            admin_python: Link::new(Arc::clone(&endpoint), "admin of AmqpLocksPython"),
            endpoint,
            probes: Prober::new(Arc::clone(&probe_link)),
            probe_link,
            local_locks: LocalLocks::default(),
            looks: tokio::sync::Semaphore::new(LOOKS_AT_ONCE),
            turns: Arc::new(tokio::sync::Semaphore::new(CHANGES_AT_ONCE)),
            disturbed: Mutex::default(),
            identity: Mutex::default(),
            facts,
            listing: Listing::default(),
            tokens: Tokens::default(),
        }))
    }

    /// Another handle on the same.
    pub(super) fn of(inner: Arc<Inner>) -> Self {
        Self(inner)
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// Whether holders' facts and owners can be asked for at all.
    #[must_use]
    pub fn has_management(&self) -> bool {
        self.0.facts.has_management()
    }

    /// Which broker this is, so that two addresses of the same one are seen to
    /// be that. Connects, so it also tells whether user, password and virtual
    /// host are accepted. Cancel safe.
    pub async fn identity(&self) -> Result<BrokerIdentity, BrokerError> {
        let conn = self.0.probe_link.get().await?;
        let known = self.0.identity.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((of, identity)) = known
            && of.ptr_eq(&Arc::downgrade(&conn))
        {
            return Ok(identity);
        }
        let (identity, cluster_id) =
            tokio::join!(ask_identity(&self.0.endpoint), self.0.facts.cluster_id());
        let identity = BrokerIdentity { cluster_id, ..identity? };
        *self.0.identity.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Arc::downgrade(&conn), identity.clone()));
        Ok(identity)
    }

    /// Which of the slots 1 to `slots_to` exist, and which of 1 to `holders_to` have
    /// a holder, without the admin mutex and without changing anything.
    ///
    /// All or nothing: when a single answer is in doubt, it is an error. Note
    /// that a queue whose node is down looks as if it were missing;
    /// [`Broker::converge`] finds that out before it changes anything.
    /// Cancel safe.
    pub async fn observe(
        &self,
        lock: &LockName,
        slots_to: u32,
        holders_to: u32,
    ) -> Result<SlotsSeen, BrokerError> {
        protocol::of(lock).observe(&self.0, lock, slots_to, holders_to).await
    }

    /// The high-water mark of a lock about which nothing is known: the highest
    /// slot of any of its queues in the management API's list, else found by
    /// probing upwards until 2 × `overshoot` slots in a row have neither slot
    /// nor holder queue. At most [`MAX_SLOTS`]. Cancel safe.
    pub async fn find_mark(&self, lock: &LockName, overshoot: u32) -> Result<u32, BrokerError> {
        protocol::of(lock).find_mark(&self.0, lock, overshoot).await
    }

    /// How many clients wait for a slot of `lock`: consumers of its wait queue;
    /// `None` without one. Cancel safe.
    pub async fn waiting(&self, lock: &LockName) -> Result<Option<u32>, BrokerError> {
        protocol::of(lock).waiting(&self.0, lock).await
    }

    /// What should be there beside the slots (but for the wait queue, of which
    /// [`Broker::waiting`] tells) and is not, in words. Cancel safe.
    pub async fn lost_parts(
        &self,
        lock: &LockName,
        wish: SlotWish,
    ) -> Result<Vec<&'static str>, BrokerError> {
        protocol::of(lock).lost_parts(&self.0, lock, wish).await
    }

    /// Wakes up to `count` of those who wait for a slot of `lock`, the ones with
    /// the highest priority first. A wake-up that nobody takes is gone after a
    /// second. Cancel safe; not told whether anybody woke.
    pub async fn wake(&self, lock: &LockName, count: u32) -> Result<(), BrokerError> {
        self.0.wake(lock, count).await
    }

    /// Whether each of the slots 1 to `slots` has its record's queue, in profile
    /// Guideline. Cancel safe.
    pub async fn has_records(&self, lock: &LockName, slots: u32) -> Result<bool, BrokerError> {
        self.0.has_records(lock, slots).await
    }

    /// Who holds the slots in `seen.held`, at most `limit` of them, lowest slot
    /// first; those above `slots` are draining.
    ///
    /// Never fails, and waits for the management API for half a second at most:
    /// without its answer the holders come without facts. Cancel safe.
    pub async fn holders(
        &self,
        lock: &LockName,
        seen: &SlotsSeen,
        slots: u32,
        limit: usize,
    ) -> Holders {
        protocol::of(lock).holders(&self.0, lock, seen, slots, limit).await
    }
}

impl Inner {
    /// Where it is, and as whom.
    pub fn settings(&self) -> &RabbitmqSettings {
        &self.endpoint.settings
    }

    /// The connection that changes this lock.
    pub fn admin_of(&self, lock: &LockName) -> &Link {
        match lock.profile() {
            Profile::Guideline => &self.admin,
            Profile::AmqpLocksPython => &self.admin_python,
        }
    }

    pub async fn observe(
        &self,
        lock: &LockName,
        slots_to: u32,
        holders_to: u32,
    ) -> Result<SlotsSeen, BrokerError> {
        protocol::of(lock).observe(self, lock, slots_to, holders_to).await
    }

    pub async fn find_mark(&self, lock: &LockName, overshoot: u32) -> Result<u32, BrokerError> {
        protocol::of(lock).find_mark(self, lock, overshoot).await
    }

    pub async fn observe_slots(
        &self,
        how: &dyn Holding,
        lock: &LockName,
        slots_to: u32,
        holders_to: u32,
    ) -> Result<SlotsSeen, BrokerError> {
        // Fails only if it is closed, which nobody does.
        let _turn = self.looks.acquire().await.map_err(|_| BrokerError::Interrupted)?;
        let eyes = Eyes { prober: &self.probes, link: &self.probe_link };
        let looked = how.look(eyes, lock, 1..=slots_to, 1..=holders_to, true).await?;
        let slots: BTreeSet<u32> =
            (1..).zip(looked.slots).filter_map(|(slot, exists)| exists.then_some(slot)).collect();
        let holders = || (1..).zip(&looked.holders);
        let held = holders().filter(|(_, seen)| **seen == HolderSeen::Held);
        let left_over = holders().filter(|(slot, seen)| {
            **seen == HolderSeen::Unheld && *slot <= slots_to && !slots.contains(slot)
        });
        Ok(SlotsSeen {
            swept_to: slots_to,
            held: held.map(|(slot, _)| slot).collect(),
            left_over: left_over.map(|(slot, _)| slot).collect(),
            slots,
        })
    }

    pub async fn has_records(&self, lock: &LockName, slots: u32) -> Result<bool, BrokerError> {
        let names: Vec<String> = (1..=slots).filter_map(|slot| lock.record_queue(slot)).collect();
        self.all_exist(&names).await
    }

    /// Whether all of these queues exist, without publishing to them.
    pub async fn all_exist(&self, names: &[String]) -> Result<bool, BrokerError> {
        let mut lane = self.publisher().await?;
        for chunk in names.chunks(LOOKED_AT_TOGETHER) {
            if !lane.all_exist(chunk).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub async fn waiting_for_slots(&self, lock: &LockName) -> Result<Option<u32>, BrokerError> {
        let Some(queue) = lock.wait_queue() else { return Ok(None) };
        self.publisher().await?.consumers(&queue).await
    }

    pub async fn find_highest_slot(
        &self,
        lock: &LockName,
        overshoot: u32,
    ) -> Result<u32, BrokerError> {
        if let Some(highest) = self.facts.highest_slot(lock).await {
            return Ok(highest);
        }
        let gap = overshoot.saturating_mul(2).max(1);
        let mut highest = 0;
        let mut to = gap.max(64);
        loop {
            let seen = self.observe(lock, to, to).await?;
            highest = highest.max(seen.highest());
            if to - highest >= gap || highest >= MAX_SLOTS {
                return Ok(highest.min(MAX_SLOTS));
            }
            to = (highest + gap).max(to.saturating_mul(2).min(MAX_SLOTS + gap));
        }
    }

    pub async fn wake(&self, lock: &LockName, count: u32) -> Result<(), BrokerError> {
        match lock.wait_queue() {
            Some(queue) if count > 0 => self.publisher().await?.wake(&queue, count, None).await,
            _ => Ok(()),
        }
    }

    /// Whether one of these queues exists.
    pub async fn any_exists(&self, names: &[String]) -> Result<bool, BrokerError> {
        Ok(self.probes.exist(names).await?.contains(&true))
    }

    /// A channel of the connection that may publish.
    pub async fn publisher(&self) -> Result<Lane, BrokerError> {
        self.probe_link.publisher().await
    }

    pub fn set_disturbed(&self, lock: &LockName) {
        self.disturbed.lock().unwrap_or_else(PoisonError::into_inner).insert(lock.clone());
    }

    pub fn take_disturbed(&self, lock: &LockName) -> bool {
        self.disturbed.lock().unwrap_or_else(PoisonError::into_inner).remove(lock)
    }
}
