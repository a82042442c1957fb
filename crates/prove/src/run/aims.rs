//! Selects the targets of cuts: a method of an operation, and the side on which the connection
//! is cut. In the course of a run, each method of each operation is hit on both sides. See
//! `workload` for when cuts happen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::RngExt;
use rand::rngs::StdRng;

use crate::history::Verb;
use crate::wire::When;

/// Number of ineffective cuts that count as one effective cut. A rare method must not keep the
/// others from being hit.
const MISSED: u64 = 4;

/// A method is rare in an operation if fewer than one in this many operations send it.
pub const RARE: u64 = 5;

/// The operations during which connections are cut.
pub const AIMED: [Verb; 3] = [Verb::Acquire, Verb::Verify, Verb::Release];

/// A target: one side of a method that an operation sends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The operation.
    pub verb: Verb,
    /// The method's name, for example `queue.declare`.
    pub method: String,
    /// The side.
    pub when: When,
}

impl Target {
    /// Returns the name of the fault, as a history records it.
    pub fn fault(&self) -> String {
        fault(self.when, &self.method)
    }
}

/// Returns the name of a cut on this side of a method, as a history records it.
pub fn fault(when: When, method: &str) -> String {
    let side = match when {
        When::Before => BEFORE,
        When::After => AFTER,
    };
    format!("{side}{method}")
}

/// Prefix of the names of cuts before a method.
pub const BEFORE: &str = "cut before ";
/// See [`BEFORE`].
pub const AFTER: &str = "cut after ";

/// Returns whether this method of a client can be a target. Requests of operations can. Answers
/// to the broker and methods that open or close a connection cannot.
pub fn is_request(method: &str) -> bool {
    !method.starts_with("connection.") && !method.ends_with("-ok") && method.contains('.')
}

/// Returns whether a method is usual in an operation: at least one in [`RARE`] operations sends
/// it. Rare methods are not chosen as targets.
pub fn is_usual(sent: u64, operations: u64) -> bool {
    sent > 0 && sent * RARE >= operations
}

/// The methods that were sent and hit so far in a run. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Aims(Arc<Mutex<Scores>>);

#[derive(Debug, Default)]
struct Scores {
    operations: BTreeMap<Verb, u64>,
    targets: BTreeMap<Target, Score>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Score {
    sent: u64,
    attempts: u64,
    hits: u64,
}

/// The next target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aim {
    /// The target.
    pub target: Target,
    /// Whether this target was never hit in this run.
    pub new: bool,
}

impl Aims {
    fn scores(&self) -> MutexGuard<'_, Scores> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the methods that an operation sent.
    pub fn note(&self, verb: Verb, methods: impl IntoIterator<Item = String>) {
        let mut scores = self.scores();
        *scores.operations.entry(verb).or_default() += 1;
        for method in methods.into_iter().filter(|method| is_request(method)) {
            for when in [When::Before, When::After] {
                let target = Target { verb, method: method.clone(), when };
                scores.targets.entry(target).or_default().sent += 1;
            }
        }
    }

    /// Returns one of the usual targets that were hit least. Returns `None` before any method
    /// was recorded.
    pub fn choose(&self, random: &mut StdRng) -> Option<Aim> {
        let scores = self.scores();
        let usual = |(target, score): &(&Target, &Score)| {
            let operations = scores.operations.get(&target.verb).copied().unwrap_or_default();
            AIMED.contains(&target.verb) && is_usual(score.sent, operations)
        };
        let worth = |score: &Score| score.hits * MISSED + score.attempts;
        let open = || scores.targets.iter().filter(usual);
        let least = open().map(|(_, score)| worth(score)).min()?;
        let open: Vec<_> = open().filter(|(_, score)| worth(score) == least).collect();
        let (target, score) = open.get(random.random_range(0..open.len()))?;
        Some(Aim { target: (*target).clone(), new: score.hits == 0 })
    }

    /// Records that a cut was aimed at this target, and whether it took effect.
    pub fn struck(&self, target: &Target, hit: bool) {
        if let Some(score) = self.scores().targets.get_mut(target) {
            score.attempts += 1;
            score.hits += u64::from(hit);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;

    use super::*;

    #[test]
    fn hits_every_method_on_both_sides_despite_a_rare_one() {
        let aims = Aims::default();
        let mut random = StdRng::seed_from_u64(1);
        assert_eq!(aims.choose(&mut random), None);
        let sent = ["queue.declare", "basic.publish", "content", "connection.open", "channel.open"];
        aims.note(Verb::Acquire, sent.map(str::to_owned));
        aims.note(Verb::Release, ["queue.delete".to_owned(), "channel.close-ok".to_owned()]);
        let mut hit = BTreeSet::new();
        for _ in 0..60 {
            let Aim { target, new } = aims.choose(&mut random).unwrap();
            let occurs = target.method != "channel.open";
            aims.struck(&target, occurs);
            if occurs {
                assert_eq!(new, hit.insert((target.verb, target.fault())));
            }
        }
        let both = |verb, method| {
            [(verb, format!("cut before {method}")), (verb, format!("cut after {method}"))]
        };
        let expected = both(Verb::Acquire, "queue.declare")
            .into_iter()
            .chain(both(Verb::Acquire, "basic.publish"))
            .chain(both(Verb::Release, "queue.delete"));
        assert_eq!(hit, expected.collect());
    }

    #[test]
    fn ignores_rare_methods_and_other_operations() {
        let aims = Aims::default();
        aims.note(Verb::Acquire, ["queue.delete".to_owned()]);
        for _ in 0..10 {
            aims.note(Verb::Acquire, ["queue.declare".to_owned()]);
            aims.note(Verb::Believes, ["channel.close".to_owned()]);
        }
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..20 {
            let target = aims.choose(&mut random).unwrap().target;
            assert_eq!(target.method, "queue.declare");
            aims.struck(&target, true);
        }
    }
}
