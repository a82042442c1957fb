//! The holders of slots: the facts that holders write into their queue arguments, and the
//! connections that own these queues, from the management API. Answers are cached so that
//! many locks cost little. See `management` for the requests.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt, Shared};
use futures::stream::{self, StreamExt};
use lockkeeper_plan::naming::{LockName, Protocol};
use lockkeeper_plan::semaphore::{HolderFacts, ObservedSlots, describe_holders};
use tokio::task::AbortHandle;

use crate::management::{Management, ManagementError, Owner, read};
use crate::protocol::holders::{ASK_AGAIN, FORGET, Holders, MAX_OWNERS, OWNERS_AT_ONCE, PATIENCE};
use crate::session::access::Access;

/// How long after a holder appeared its owner is requested. The API lists it after up to
/// 6 s.
const OWNER_WINDOW: Duration = Duration::from_secs(10);

/// Age at which the owner of a holder without an id of its own is requested again.
/// Nothing else reveals a change of holder.
const OWNER_STALE: Duration = Duration::from_secs(60);

/// How long after a consumer appeared the list may still contain its predecessor. The
/// broker's statistics are 5 s old by default.
const LIST_LAGS: Duration = Duration::from_secs(6);

/// The cached facts of one virtual host.
pub struct HolderCache {
    management: Option<Arc<Management>>,
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Maps the holder queue's name to the facts that its holder wrote.
    list: HashMap<String, HolderFacts>,
    /// When the list was requested. It lacks everything that appeared later.
    list_at: Option<Instant>,
    attempt_at: Option<Instant>,
    error: Option<ManagementError>,
    /// The running request, and a future to wait for it. The task itself shows whether it
    /// has finished: a shared future that is not polled does not notice.
    refreshing: Option<(AbortHandle, Shared<BoxFuture<'static, ()>>)>,
    locks: HashMap<LockName, Tracked>,
}

struct Tracked {
    used: Instant,
    slots: HashMap<u32, Occupant>,
    /// The last listed facts of former holders, for lists that lag. They must not be
    /// attributed to their successors.
    former: HashMap<u32, HolderFacts>,
}

/// One holder of one slot, as far as it could be tracked.
struct Occupant {
    /// When its queue was first seen after it was last missing. Older facts belong to
    /// another holder.
    appeared: Instant,
    /// When the holder was found to have changed.
    changed: Instant,
    id: Option<String>,
    owner: Option<Owner>,
    owner_asked: Option<Instant>,
}

impl Occupant {
    /// Whether a list requested at that time can describe this holder rather than a
    /// predecessor.
    fn is_covered_by(&self, list_at: Option<Instant>) -> bool {
        list_at.is_some_and(|at| at >= self.appeared)
    }

    /// Whether the list may still describe a predecessor.
    fn may_lag(&self, lock: &LockName) -> bool {
        is_held_by_consumers(lock) && self.appeared.elapsed() < LIST_LAGS
    }
}

impl HolderCache {
    /// Creates an empty cache.
    pub fn new(access: &Access) -> Self {
        let interval = access.options.facts_interval;
        Self { management: access.management.clone(), interval, state: Mutex::default() }
    }

    pub async fn holders(
        this: &Arc<Self>,
        lock: &LockName,
        seen: &ObservedSlots,
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
        // Each list makes the broker walk over all its queues, and most locks are free.
        if shown.is_empty() {
            return Holders::default();
        }
        if let Some(refreshing) = this.refresh_if_needed(unknown || lags)
            && unknown
        {
            // Otherwise it runs in the background, and the cached facts are used until
            // then.
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

    /// Concurrent callers share one request.
    fn refresh_if_needed(self: &Arc<Self>, wanted: bool) -> Option<Shared<BoxFuture<'static, ()>>> {
        let mut state = self.lock_state();
        if let Some((task, refreshed)) = &state.refreshing
            && !task.is_finished()
        {
            return Some(refreshed.clone());
        }
        let older = |at: Option<Instant>, age| at.is_none_or(|at| at.elapsed() >= age);
        // After a failure, the API is not asked for one interval.
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
                state.list = queues.into_iter().map(|q| (q.name, read(&q.arguments))).collect();
                // Waiters consume too, but not exclusively.
                for consumer in consumers.into_iter().filter(|consumer| consumer.exclusive) {
                    let facts = read(&consumer.arguments);
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
                                // An owner that is unknown for now doesn't replace a
                                // known one.
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

    /// Returns the listed facts of a slot's holder, excluding those of its predecessor.
    fn listed(&self, lock: &LockName, slot: u32) -> Option<&HolderFacts> {
        let former = self.locks.get(lock).and_then(|tracked| tracked.former.get(&slot));
        self.list.get(&lock.holder_queue(slot)).filter(|facts| former != Some(facts))
    }

    /// Records which slots are held. Returns whether one of `shown` has no facts, and
    /// whether the facts may belong to a predecessor.
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
                // The queue name is unchanged, but the acquisition is another one.
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

/// Whether holders are consumers, whose facts are in the list of consumers instead of
/// queues.
fn is_held_by_consumers(lock: &LockName) -> bool {
    lock.protocol() == Protocol::ExclusiveConsumer
}
