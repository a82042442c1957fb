//! Who holds the slots: facts that holders wrote into their queues, and the
//! connections that own these, from the management API, cached so that many
//! locks cost it little. How the API is asked is `management`'s.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt, Shared};
use futures::stream::{self, StreamExt};
use tokio::task::AbortHandle;

use super::management::{Management, Owner};
use super::marks::Marks;
use crate::plan::connection::RabbitmqSettings;
use crate::plan::naming::{LockName, Protocol};
use crate::plan::semaphore::{Holder, HolderFacts, SlotsSeen, describe_holders};

/// How long an observation waits for facts at most.
const PATIENCE: Duration = Duration::from_millis(500);

/// The list is asked for at most this often, whatever new holders appear, and a
/// queue's owner likewise.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long after a holder appeared its owner is asked for: the API knows it
/// after up to 6 s.
const OWNER_WINDOW: Duration = Duration::from_secs(10);

/// Age at which the owner of a holder without an id of its own is asked for
/// again: nothing else tells that it is a different one.
const OWNER_STALE: Duration = Duration::from_secs(60);

/// How long after a consumer appeared the list may still tell of one before it: the
/// broker's statistics are 5 s old by default.
const LIST_LAGS: Duration = Duration::from_secs(6);

/// Most owners asked for in one observation of one lock.
const MAX_OWNERS: usize = 50;

/// Owners asked for at the same time.
const OWNERS_AT_ONCE: usize = 8;

/// Locks that nobody asked about for this long are forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// Who holds the slots, and how sure that is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The holders, lowest slot first.
    pub list: Vec<Holder>,
    /// Facts are still missing that are worth asking for again soon (the
    /// management API knows a connection only after some seconds).
    pub incomplete: bool,
    /// Why the management API gave no facts, if it is at fault.
    pub management_error: Option<String>,
}

/// The cached facts of one virtual host.
pub(super) struct Facts {
    management: Option<Arc<Management>>,
    marks: Option<Marks>,
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Holder queue's name → what its holder wrote.
    list: HashMap<String, HolderFacts>,
    /// When the list was asked for; what appeared later isn't in it.
    list_at: Option<Instant>,
    attempt_at: Option<Instant>,
    error: Option<String>,
    /// The request that runs, and how to wait for it. Only the task itself tells
    /// whether it has ended: what nobody waits for never learns of it.
    refreshing: Option<(AbortHandle, Shared<BoxFuture<'static, ()>>)>,
    locks: HashMap<LockName, Tracked>,
}

struct Tracked {
    used: Instant,
    slots: HashMap<u32, Occupant>,
    /// What was listed of those who left last, where lists lag: not to be taken for
    /// who came after them.
    former: HashMap<u32, HolderFacts>,
}

/// One holder on one slot, as far as we could follow.
struct Occupant {
    /// When its queue was first seen after it was last seen missing: facts
    /// older than this are another holder's.
    appeared: Instant,
    /// When it turned out to be another holder.
    changed: Instant,
    id: Option<String>,
    owner: Option<Owner>,
    owner_asked: Option<Instant>,
}

impl Occupant {
    /// Whether a list asked for at that time can tell of this holder, rather
    /// than of one before it.
    fn is_covered_by(&self, list_at: Option<Instant>) -> bool {
        list_at.is_some_and(|at| at >= self.appeared)
    }

    /// Whether the list may still tell of one before it.
    fn may_lag(&self, lock: &LockName) -> bool {
        is_held_by_consumers(lock) && self.appeared.elapsed() < LIST_LAGS
    }
}

impl Facts {
    pub fn new(settings: &RabbitmqSettings, interval: Duration) -> Self {
        let management = Management::new(settings).map(Arc::new);
        let marks = management.clone().map(Marks::new);
        Self { management, marks, interval, state: Mutex::default() }
    }

    pub fn has_management(&self) -> bool {
        self.management.is_some()
    }

    pub fn management(&self) -> Option<&Arc<Management>> {
        self.management.as_ref()
    }

    /// The highest slot in any of the lock's queues; `None` if the API can't say.
    pub async fn highest_slot(&self, lock: &LockName) -> Option<u32> {
        self.marks.as_ref()?.highest_slot(lock).await
    }

    /// The cluster's own id, if the API tells it to our user.
    pub async fn cluster_id(&self) -> Option<String> {
        self.management.as_ref()?.cluster_id().await.ok().flatten()
    }

    pub async fn holders(
        this: &Arc<Self>,
        lock: &LockName,
        seen: &SlotsSeen,
        slots: u32,
        limit: usize,
    ) -> Holders {
        let shown: BTreeSet<u32> = seen.held.iter().copied().take(limit).collect();
        if this.management.is_none() {
            let list = describe_holders(&shown, slots, limit, |_| HolderFacts::default());
            return Holders { list, incomplete: false, management_error: None };
        }
        let waited_until = Instant::now() + PATIENCE;
        let (unknown, lags) = this.lock_state().follow(lock, &seen.held, &shown);
        if let Some(refreshing) = this.refresh_if_needed(unknown || lags)
            && unknown
        {
            // In the background otherwise: what is known will do until then.
            let _ = tokio::time::timeout_at(waited_until.into(), refreshing).await;
        }
        let ask = this.lock_state().owners_to_ask(lock, &shown);
        if !ask.is_empty() {
            let asking = tokio::spawn(Arc::clone(this).ask_owners(lock.clone(), ask));
            let _ = tokio::time::timeout_at(waited_until.into(), asking).await;
        }
        this.lock_state().describe(lock, &shown, slots, limit)
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request serves everyone who needs it meanwhile.
    fn refresh_if_needed(self: &Arc<Self>, wanted: bool) -> Option<Shared<BoxFuture<'static, ()>>> {
        let mut state = self.lock_state();
        if let Some((task, refreshed)) = &state.refreshing
            && !task.is_finished()
        {
            return Some(refreshed.clone());
        }
        let older = |at: Option<Instant>, age| at.is_none_or(|at| at.elapsed() >= age);
        // After a failure, an API that is down is left alone for an interval.
        let pause = if state.error.is_some() { self.interval } else { ASK_AGAIN };
        let needed = wanted || older(state.list_at, self.interval);
        if !needed || !older(state.attempt_at, pause) {
            return None;
        }
        state.attempt_at = Some(Instant::now());
        let task = tokio::spawn(Arc::clone(self).refresh());
        let handle = task.abort_handle();
        let refreshed = task.map(|_| ()).boxed().shared();
        state.refreshing = Some((handle, refreshed.clone()));
        Some(refreshed)
    }

    async fn refresh(self: Arc<Self>) {
        let Some(management) = &self.management else { return };
        let at = Instant::now();
        let has_consumers = self.lock_state().locks.keys().any(is_held_by_consumers);
        let queues = management.queues_matching("-([0-9]+-B|B-[0-9]+)$");
        let consumers =
            async { if has_consumers { management.consumers().await } else { Ok(Vec::new()) } };
        let answer = futures::try_join!(queues, consumers);
        let mut state = self.lock_state();
        match answer {
            Ok((queues, consumers)) => {
                state.list = queues.into_iter().map(|q| (q.name, read(q.arguments))).collect();
                // Who waits consumes too, but not alone.
                for consumer in consumers.into_iter().filter(|consumer| consumer.exclusive) {
                    let facts = read(consumer.arguments());
                    let facts = HolderFacts { connection: consumer.connection(), ..facts };
                    state.list.insert(consumer.queue.name, facts);
                }
                state.list_at = Some(at);
                state.error = None;
                state.locks.retain(|_, tracked| tracked.used.elapsed() < FORGET);
            }
            Err(error) => state.error = Some(error),
        }
    }

    async fn ask_owners(self: Arc<Self>, lock: LockName, slots: Vec<u32>) {
        let Some(management) = &self.management else { return };
        stream::iter(slots)
            .for_each_concurrent(OWNERS_AT_ONCE, |slot| {
                let queue = lock.holder_queue(slot);
                let (facts, lock) = (&self, &lock);
                async move {
                    let asked = Instant::now();
                    let answer = if is_held_by_consumers(lock) {
                        let listed = facts.lock_state().listed(lock, slot).cloned();
                        match listed.and_then(|facts| facts.connection) {
                            Some(name) => Ok(Some(management.owner(name).await)),
                            None => Ok(None),
                        }
                    } else {
                        management.owner_of(&queue).await
                    };
                    let mut state = facts.lock_state();
                    match answer {
                        Ok(owner) => {
                            if let Some(occupant) = state.occupant(lock, slot)
                                && occupant.changed <= asked
                            {
                                // Unknown for now doesn't undo what was known.
                                occupant.owner = owner.or(occupant.owner.take());
                            }
                        }
                        Err(error) => state.error = Some(error),
                    }
                }
            })
            .await;
    }
}

impl State {
    fn occupant(&mut self, lock: &LockName, slot: u32) -> Option<&mut Occupant> {
        self.locks.get_mut(lock)?.slots.get_mut(&slot)
    }

    /// What is listed of a slot's holder, but not of who left it.
    fn listed(&self, lock: &LockName, slot: u32) -> Option<&HolderFacts> {
        let former = self.locks.get(lock).and_then(|tracked| tracked.former.get(&slot));
        self.list.get(&lock.holder_queue(slot)).filter(|facts| former != Some(facts))
    }

    /// Takes note of which slots are held; whether one of `shown` has no facts, and
    /// whether what there is may be that of one before it.
    fn follow(
        &mut self,
        lock: &LockName,
        held: &BTreeSet<u32>,
        shown: &BTreeSet<u32>,
    ) -> (bool, bool) {
        let now = Instant::now();
        if held.is_empty() && !is_held_by_consumers(lock) {
            self.locks.remove(lock);
            return (false, false);
        }
        let fresh = || Tracked { used: now, slots: HashMap::new(), former: HashMap::new() };
        let tracked = self.locks.entry(lock.clone()).or_insert_with(fresh);
        tracked.used = now;
        for (slot, _) in tracked.slots.extract_if(|slot, _| !held.contains(slot)) {
            if is_held_by_consumers(lock)
                && let Some(facts) = self.list.get(&lock.holder_queue(slot))
            {
                tracked.former.insert(slot, facts.clone());
            }
        }
        let (mut unknown, mut lags) = (false, false);
        for &slot in shown {
            let occupant = tracked.slots.entry(slot).or_insert_with(|| Occupant {
                appeared: now,
                changed: now,
                id: None,
                owner: None,
                owner_asked: None,
            });
            let covered = occupant.is_covered_by(self.list_at);
            unknown |= !covered;
            lags |= occupant.may_lag(lock);
        }
        (unknown, lags)
    }

    fn owners_to_ask(&mut self, lock: &LockName, shown: &BTreeSet<u32>) -> Vec<u32> {
        if self.error.is_some() {
            return Vec::new();
        }
        let Some(tracked) = self.locks.get_mut(lock) else { return Vec::new() };
        let now = Instant::now();
        let mut ask = Vec::new();
        for &slot in shown.iter().take(MAX_OWNERS) {
            let Some(occupant) = tracked.slots.get_mut(&slot) else { continue };
            let listed = self.list.get(&lock.holder_queue(slot));
            let listed = listed.filter(|facts| tracked.former.get(&slot) != Some(facts));
            let covered = occupant.is_covered_by(self.list_at);
            if let Some(facts) = listed.filter(|_| covered)
                && facts.id != occupant.id
            {
                // The same queue name, but another acquisition.
                occupant.id.clone_from(&facts.id);
                if occupant.owner_asked.is_some() {
                    occupant.changed = now;
                    (occupant.owner, occupant.owner_asked) = (None, None);
                }
            }
            let asked_ago = occupant.owner_asked.map(|at| now.duration_since(at));
            let due = match asked_ago {
                None => true,
                Some(ago) if occupant.owner.is_none() => {
                    ago >= ASK_AGAIN && now.duration_since(occupant.changed) < OWNER_WINDOW
                }
                Some(ago) => occupant.id.is_none() && ago >= OWNER_STALE,
            };
            if due {
                occupant.owner_asked = Some(now);
                ask.push(slot);
            }
        }
        ask
    }

    fn describe(
        &self,
        lock: &LockName,
        shown: &BTreeSet<u32>,
        slots: u32,
        limit: usize,
    ) -> Holders {
        let tracked = self.locks.get(lock);
        let mut incomplete = false;
        let list = describe_holders(shown, slots, limit, |slot| {
            let Some(occupant) = tracked.and_then(|t| t.slots.get(&slot)) else {
                return HolderFacts::default();
            };
            let covered = occupant.is_covered_by(self.list_at);
            let listed = self.listed(lock, slot).filter(|_| covered);
            let owner_pending =
                occupant.owner.is_none() && occupant.changed.elapsed() < OWNER_WINDOW;
            incomplete |= !covered || owner_pending || occupant.may_lag(lock);
            let listed = listed.cloned().unwrap_or_default();
            match &occupant.owner {
                Some(Owner { connection, user }) => HolderFacts {
                    connection: Some(connection.clone()),
                    user: user.clone(),
                    ..listed
                },
                None => listed,
            }
        });
        let incomplete = incomplete && self.error.is_none();
        Holders { list, incomplete, management_error: self.error.clone() }
    }
}

/// Whether holders are consumers, whose facts are in another list than queues'.
fn is_held_by_consumers(lock: &LockName) -> bool {
    lock.protocol() == Protocol::ExclusiveConsumer
}

/// What a holder wrote into its queue's arguments.
pub(super) fn read(mut arguments: HashMap<String, serde_json::Value>) -> HolderFacts {
    let mut text = |key: &str| match arguments.remove(key) {
        Some(serde_json::Value::String(text)) => Some(text),
        _ => None,
    };
    HolderFacts {
        id: text("x-lockkeeper-id"),
        identity: text("x-lockkeeper-identity"),
        reason: text("x-lockkeeper-reason"),
        url: text("x-lockkeeper-url"),
        since: text("x-lockkeeper-since"),
        connection: None,
        user: None,
    }
}
