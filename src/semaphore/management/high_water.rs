//! Finds the highest slot of locks without recorded state, by the management API. Many
//! locks share one request, because each answer makes the broker walk over all its
//! queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::Management;
use crate::plan::naming::{LockName, MAX_SLOTS, Profile};

/// Pause after a list, as a multiple of the time that the list took. Requests pile up in
/// the meantime.
const REST: u32 = 3;

/// Combines the requests of many callers. While one is answered, the next ones pile up.
pub struct Marks {
    management: Arc<Management>,
    asked: Arc<Mutex<Asked>>,
}

#[derive(Default)]
struct Asked {
    waiting: Vec<(LockName, oneshot::Sender<Option<u32>>)>,
    /// Whether a task is running. It runs until no caller waits.
    asking: bool,
}

impl Marks {
    pub fn new(management: Arc<Management>) -> Self {
        Self { management, asked: Arc::default() }
    }

    /// Returns the highest slot in any of the lock's queues, 0 if it has none. `None` if
    /// the API cannot determine it. Cancel safe.
    pub async fn highest_slot(&self, lock: &LockName) -> Option<u32> {
        let (answer, reply) = oneshot::channel();
        let start = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.waiting.push((lock.clone(), answer));
            !std::mem::replace(&mut asked.asking, true)
        };
        if start {
            let (management, asked) = (Arc::clone(&self.management), Arc::clone(&self.asked));
            tokio::spawn(async move {
                while let Some(batch) = next(&asked) {
                    let start = Instant::now();
                    ask(&management, batch, &asked).await;
                    // A list of thousands of queues keeps one core of the broker busy.
                    tokio::time::sleep(start.elapsed() * REST).await;
                }
            });
        }
        reply.await.ok().flatten()
    }
}

/// Takes all callers that wait now.
fn next(asked: &Mutex<Asked>) -> Option<Vec<(LockName, oneshot::Sender<Option<u32>>)>> {
    let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
    asked.asking = !asked.waiting.is_empty();
    asked.asking.then(|| std::mem::take(&mut asked.waiting))
}

async fn ask(
    management: &Management,
    batch: Vec<(LockName, oneshot::Sender<Option<u32>>)>,
    asked: &Mutex<Asked>,
) {
    // The callers of the senders dropped here have given up.
    let Ok(queues) = management.queue_names().await else {
        // It would probably fail for the other callers too, after an equally long wait.
        asked.lock().unwrap_or_else(PoisonError::into_inner).waiting.clear();
        return;
    };
    let mut highest: HashMap<(&str, Profile), u32> = HashMap::new();
    for (lock, profile, slot) in queues.iter().filter_map(|queue| parse(queue)) {
        let highest = highest.entry((lock, profile)).or_default();
        *highest = slot.max(*highest);
    }
    for (lock, answer) in batch {
        let of = highest.get(&(lock.as_str(), lock.profile()));
        let _ = answer.send(Some(of.copied().unwrap_or(0)));
    }
}

/// Parses a queue name into its lock, profile and slot.
fn parse(queue: &str) -> Option<(&str, Profile, u32)> {
    let (rest, last) = queue.rsplit_once('-')?;
    let (lock, other) = rest.rsplit_once('-')?;
    let (profile, number) = match (other, last) {
        (number, "A" | "B" | "C" | "F") => (Profile::Guideline, number),
        ("A" | "B", number) => (Profile::AmqpLocksPython, number),
        _ => return None,
    };
    let slot = number.parse().ok().filter(|slot| (1..=MAX_SLOTS).contains(slot))?;
    // "007" parses too, but is not a slot number.
    (number == u32::to_string(&slot)).then_some((lock, profile, slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_name_yields_its_lock_and_slot_or_belongs_to_none() {
        assert_eq!(parse("a.b-2-c-12-A"), Some(("a.b-2-c", Profile::Guideline, 12)));
        assert_eq!(parse("a-1-B"), Some(("a", Profile::Guideline, 1)));
        assert_eq!(parse("a-1-F"), Some(("a", Profile::Guideline, 1)));
        assert_eq!(parse("a-3-B-1"), Some(("a-3", Profile::AmqpLocksPython, 1)));
        for other in
            ["a", "a-1-D", "a-F-1", "a-W", "a-A-B", "a-007-A", "a-0-A", "a-10001-A", "-A", "1-A"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
