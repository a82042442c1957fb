//! Lists the queues of a virtual host by the management API, and which slots they belong to.
//! One list serves all its locks, where probing would cost two AMQP methods per possible
//! slot. Only for observation, and as a first guess: a change observes again, over AMQP and
//! under the mutex.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::try_join;
use lockkeeper_plan::naming::{LockName, MAX_SLOTS, Profile, Protocol};
use tokio::sync::Mutex;

use super::{Management, ManagementError};

/// Maximum age of a recent list, as a multiple of the time that it took. Each list makes the
/// broker walk over all its queues, and thousands of them keep one of its cores busy.
const RECENT: u32 = 10;

/// The last list. A caller that needs a newer one waits for a request that is already
/// running.
#[derive(Default)]
pub struct Listing(Mutex<Option<Listed>>);

struct Listed {
    /// When the list was requested. It lacks everything that was created later.
    at: Instant,
    /// How long the request took.
    took: Duration,
    /// `None`: the API returned no list, and is not asked again until this entry is old.
    of: Option<Arc<ListedQueues>>,
}

/// The queues of slots that an API has listed.
pub struct ListedQueues {
    /// The name of the API's own cluster.
    pub cluster: Option<String>,
    locks: HashMap<Profile, HashMap<Box<str>, ListedLock>>,
    /// The locks that have a token queue.
    tokens: HashSet<Box<str>>,
}

/// The queues of one lock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListedLock {
    /// The slots that have a slot queue.
    pub slots: BTreeSet<u32>,
    /// The highest slot that has any queue, up to [`MAX_SLOTS`].
    pub highest: u32,
    /// Whether the first slot has a record queue.
    pub has_records: bool,
    /// Whether a slot has the holder queue `B[i]`, and whether one has `C[i]`.
    holders: (bool, bool),
}

impl Listing {
    /// Returns a list that was requested after `since` and at most `interval` ago. Cancel
    /// safe.
    pub async fn get(
        &self,
        management: &Management,
        interval: Duration,
        since: Option<Instant>,
    ) -> Option<Arc<ListedQueues>> {
        let is_new = |listed: &Listed| listed.at.elapsed() < interval;
        self.newest(management, is_new, since).await
    }

    /// Returns a list that is at most [`RECENT`] times as old as the time that it took: for
    /// a vhost with few queues, a fraction of a second. Cancel safe.
    pub async fn recent(&self, management: &Management) -> Option<Arc<ListedQueues>> {
        let is_new = |listed: &Listed| listed.at.elapsed() < listed.took * RECENT;
        self.newest(management, is_new, None).await
    }

    async fn newest(
        &self,
        management: &Management,
        is_new: impl Fn(&Listed) -> bool,
        since: Option<Instant>,
    ) -> Option<Arc<ListedQueues>> {
        let mut last = self.0.lock().await;
        if !last.as_ref().is_some_and(is_new) {
            let at = Instant::now();
            let of = list(management).await.ok().map(Arc::new);
            *last = Some(Listed { at, took: at.elapsed(), of });
        }
        let listed = last.as_ref()?;
        listed.of.clone().filter(|_| since.is_none_or(|since| listed.at > since))
    }
}

async fn list(management: &Management) -> Result<ListedQueues, ManagementError> {
    let (names, cluster) = try_join!(management.queue_names(), management.cluster_name())?;
    Ok(ListedQueues::new(cluster, names.iter().map(String::as_str)))
}

impl ListedQueues {
    fn new<'a>(cluster: Option<String>, names: impl Iterator<Item = &'a str>) -> Self {
        let mut locks: HashMap<Profile, HashMap<Box<str>, ListedLock>> = HashMap::new();
        let mut tokens = HashSet::new();
        for name in names {
            if let Some(lock) = name.strip_suffix(".semaphore") {
                tokens.insert(lock.into());
            }
            let Some(Parsed { lock, profile, slot, part }) = parse(name) else { continue };
            let of_profile = locks.entry(profile).or_default();
            if !of_profile.contains_key(lock) {
                of_profile.insert(lock.into(), ListedLock::default());
            }
            let Some(listed) = of_profile.get_mut(lock) else { continue };
            match part {
                "A" => drop(listed.slots.insert(slot)),
                "B" => listed.holders.0 = true,
                "C" => listed.holders.1 = true,
                _ => listed.has_records |= slot == 1,
            }
            if slot <= MAX_SLOTS {
                listed.highest = slot.max(listed.highest);
            }
        }
        Self { cluster, locks, tokens }
    }

    /// Returns the queues of the lock. `None` if it has none with a slot.
    pub fn of(&self, lock: &LockName) -> Option<&ListedLock> {
        self.named(lock, lock.profile())
    }

    fn named(&self, lock: &LockName, profile: Profile) -> Option<&ListedLock> {
        self.locks.get(&profile)?.get(lock.as_str())
    }

    /// Whether a queue of that name may belong to another protocol.
    pub fn shows_another_protocol(&self, lock: &LockName) -> bool {
        let slots = self.named(lock, Profile::Guideline);
        let python = self.named(lock, Profile::AmqpLocksPython).is_some();
        let tokens = self.tokens.contains(lock.as_str());
        match lock.protocol() {
            Protocol::ExclusiveQueue(_) => tokens || slots.is_some_and(|of| of.holders.1),
            Protocol::ExclusiveConsumer => {
                let is_other =
                    |of: &ListedLock| of.holders.0 || !of.holders.1 && !of.slots.is_empty();
                tokens || python || slots.is_some_and(is_other)
            }
            // A token's holder announces itself by a queue, whose number is no slot's.
            Protocol::Token(_) => python || slots.is_some(),
            Protocol::TrueMutex => false,
        }
    }
}

/// The name of a queue that belongs to a slot.
#[derive(Debug, PartialEq, Eq)]
struct Parsed<'a> {
    lock: &'a str,
    profile: Profile,
    slot: u32,
    /// `A`, `B`, `C` or `F`.
    part: &'a str,
}

fn parse(queue: &str) -> Option<Parsed<'_>> {
    let (rest, last) = queue.rsplit_once('-')?;
    let (lock, other) = rest.rsplit_once('-')?;
    let (profile, part, number) = match (other, last) {
        (number, "A" | "B" | "C" | "F") => (Profile::Guideline, last, number),
        ("A" | "B", number) => (Profile::AmqpLocksPython, other, number),
        _ => return None,
    };
    let slot = number.parse().ok().filter(|slot| *slot > 0)?;
    // "007" parses too, but is not a slot number.
    let parsed = Parsed { lock, profile, slot, part };
    (number == u32::to_string(&slot)).then_some(parsed)
}

#[cfg(test)]
mod tests {
    use lockkeeper_plan::naming::QueueType;

    use super::*;

    #[test]
    fn a_queue_name_yields_its_lock_and_slot_or_belongs_to_none() {
        let parsed = |queue| parse(queue).map(|p| (p.lock, p.profile, p.slot, p.part == "A"));
        assert_eq!(parsed("a.b-2-c-12-A"), Some(("a.b-2-c", Profile::Guideline, 12, true)));
        assert_eq!(parsed("a-1-B"), Some(("a", Profile::Guideline, 1, false)));
        assert_eq!(parsed("a-1-F"), Some(("a", Profile::Guideline, 1, false)));
        assert_eq!(parsed("a-3-A-1"), Some(("a-3", Profile::AmqpLocksPython, 1, true)));
        assert_eq!(parsed("a-3-B-1"), Some(("a-3", Profile::AmqpLocksPython, 1, false)));
        for other in ["a", "a-1-D", "a-F-1", "a-W", "a-A-B", "a-007-A", "a-0-A", "-A", "1-A"] {
            assert_eq!(parsed(other), None, "{other}");
        }
    }

    #[test]
    fn a_list_shows_the_slots_of_each_lock_and_the_highest_that_has_any_queue() {
        let names = ["a-1-A", "a-3-A", "a-7-B", "a-10001-A", "b-A-2", "a-W", "other"];
        let listed = ListedQueues::new(None, names.into_iter());
        let of = |name: &str, profile| {
            let lock = LockName::new(name).unwrap().with_profile(profile);
            listed.of(&lock).map(|of| (of.slots.iter().copied().collect::<Vec<_>>(), of.highest))
        };
        assert_eq!(of("a", Profile::Guideline), Some((vec![1, 3, 10_001], 7)));
        assert_eq!(of("b", Profile::AmqpLocksPython), Some((vec![2], 2)));
        assert_eq!(of("b", Profile::Guideline), None);
    }

    #[test]
    fn a_list_shows_whether_the_first_slot_has_a_record_queue() {
        let listed = ListedQueues::new(None, ["a-1-A", "a-1-F", "b-2-F"].into_iter());
        let has = |name| listed.of(&LockName::new(name).unwrap()).map(|of| of.has_records);
        assert_eq!(["a", "b", "c"].map(has), [Some(true), Some(false), None]);
    }

    #[test]
    fn a_list_shows_whether_a_name_has_queues_of_another_protocol() {
        let protocols = [
            Protocol::ExclusiveQueue(Profile::Guideline),
            Protocol::ExclusiveConsumer,
            Protocol::Token(QueueType::Classic),
        ];
        for (names, shown) in [
            (&[][..], [false, false, false]),
            (&["a-W", "a", "a-1763756400000000-B"], [false, false, false]),
            (&["a-1-A", "a-W"], [false, true, true]),
            (&["a-1-A", "a-1-C", "a-1-F"], [true, false, true]),
            (&["a-1-A", "a-1-B", "a-1-C"], [true, true, true]),
            (&["a-2-C"], [true, false, true]),
            (&["a.semaphore"], [true, true, false]),
            (&["a.semaphore", "a-1-A"], [true, true, true]),
            (&["a-A-1"], [false, true, true]),
            (&["b-1-A", "b-1-C", "b.semaphore"], [false, false, false]),
        ] {
            let listed = ListedQueues::new(None, names.iter().copied());
            let lock = |protocol| LockName::new("a").unwrap().with_protocol(protocol);
            let found = protocols.map(|protocol| listed.shows_another_protocol(&lock(protocol)));
            assert_eq!(found, shown, "{names:?}");
        }
    }
}
