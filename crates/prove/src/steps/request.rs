//! A step of a process: a request to the broker. Defines which requests depend on each other, so
//! that their order matters. See `explore` for the use of this.

use std::cmp::Ordering;
use std::fmt::{self, Display};

use lockkeeper_plan::naming::LockName;

use super::explore::Step;
use crate::history::Verb;
use crate::run::aims::fault;
use crate::wire::When;

/// A step of a process. Equal in two executions even though their locks have different names and
/// their connections may have different numbers.
#[derive(Clone, Debug)]
pub struct Request {
    /// The process.
    pub process: u32,
    /// The kind of the step.
    pub what: Asked,
    /// The number of its connection. 0 if it is not a request to the broker.
    pub connection: usize,
}

impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Request {}

impl PartialOrd for Request {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Request {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.process, &self.what).cmp(&(other.process, &other.what))
    }
}

/// The kind of a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// The process is asked to start its next operation.
    Begin(Verb),
    /// The process sends a method that concerns a queue. Contains the name of the method, as in
    /// a history.
    Method(String, On),
    /// The prover injects a fault instead of a step.
    Cut(Cut),
}

/// An injected fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// The connection is cut before or after this method, as in [`Asked::Method`].
    Method(When, String, On),
    /// All connections of the process are cut while it holds.
    Holding,
}

/// The queue that a method concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum On {
    /// A queue of a slot: `A`, the holder's `B` or `C`, or the record `F`.
    Slot(u32, char),
    /// Another queue. The name of the lock in its name is replaced by `N`.
    Queue(String),
    /// The queue is unknown.
    Unknown,
}

impl On {
    /// Parses the name of a queue.
    pub fn read(lock: Option<&LockName>, queue: &str) -> Self {
        if queue.is_empty() {
            return Self::Unknown;
        }
        let Some(lock) = lock else { return Self::Queue(queue.to_owned()) };
        let named = |part: char| {
            let number = queue.strip_prefix(lock.as_str())?.strip_prefix('-')?;
            number.strip_suffix(part)?.strip_suffix('-')?.parse().ok().map(|slot| (slot, part))
        };
        let slot = lock.slot_of_slot_queue(queue).map(|slot| (slot, 'A'));
        let slot = slot.or_else(|| {
            let holder = if named('C').is_some() { 'C' } else { 'B' };
            lock.slot_of_holder_queue(queue).map(|slot| (slot, holder))
        });
        match slot.or_else(|| ['B', 'C', 'F'].into_iter().find_map(named)) {
            Some((slot, part)) => Self::Slot(slot, part),
            None => Self::Queue(match queue.strip_prefix(lock.as_str()) {
                Some(rest) => format!("N{rest}"),
                None => queue.to_owned(),
            }),
        }
    }
}

/// Returns whether a method changes the state of a queue. A publish to a slot's queue does not:
/// the queue stores nothing, so the publish only shows whether it exists.
fn writes(method: &str, on: &On) -> bool {
    match method {
        "queue.declare(passive)" => false,
        "basic.publish" => !matches!(on, On::Slot(_, 'A' | 'B' | 'C')),
        _ => true,
    }
}

impl Step for Request {
    fn actor(&self) -> u32 {
        self.process
    }

    fn is_in_sequence_with(&self, other: &Self) -> bool {
        let begins = self.connection == 0 || other.connection == 0;
        self.process == other.process && (begins || self.connection == other.connection)
    }

    /// Two requests depend on each other in two cases. First, both concern one queue, and one of
    /// them changes it.
    ///
    /// Second, both concern one slot. A grant is legal only if the slot existed at an instant
    /// during the acquisition, so their order matters in two cases. Either both change a queue,
    /// and one of them creates or deletes the slot. Or one of them creates the slot, and a grant
    /// may follow from the other. The last request before a grant is assumed to concern the
    /// slot.
    fn depends_on(&self, other: &Self) -> bool {
        let (Asked::Method(one, on), Asked::Method(two, at)) = (&self.what, &other.what) else {
            // A hold may end, and a grant may follow from any request or fault.
            return true;
        };
        let both = writes(one, on) && writes(two, at);
        match (on, at) {
            (On::Unknown, _) | (_, On::Unknown) => true,
            (On::Slot(first, _), On::Slot(second, _)) if first != second => false,
            (On::Slot(_, 'A'), On::Slot(_, part)) if *part != 'A' => both || creates(one),
            (On::Slot(_, part), On::Slot(_, 'A')) if *part != 'A' => both || creates(two),
            _ => on == at && (writes(one, on) || writes(two, at)),
        }
    }
}

/// Returns whether a method may create a queue.
fn creates(method: &str) -> bool {
    method == "queue.declare"
}

impl Request {
    /// Returns whether the request concerns a slot above this number and does not create it.
    /// Such slots never exist, so nothing depends on the order.
    pub fn is_beyond(&self, slots: u32) -> bool {
        match &self.what {
            Asked::Method(name, On::Slot(slot, _)) => *slot > slots && !creates(name),
            _ => false,
        }
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.process;
        match &self.what {
            Asked::Begin(verb) => write!(f, "process {process}: starts {}", verb.name()),
            Asked::Method(name, on) => write!(f, "process {process}: {name} {on}"),
            Asked::Cut(Cut::Method(when, name, on)) => {
                write!(f, "process {process}: {} {on}", fault(*when, name))
            }
            Asked::Cut(Cut::Holding) => write!(f, "process {process}: cut while it holds"),
        }
    }
}

impl Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot, part) => write!(f, "{part}[{slot}]"),
            Self::Queue(name) => f.write_str(name),
            Self::Unknown => f.write_str("(unknown queue)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Rules;

    fn request(process: u32, method: &str, on: On) -> Request {
        Request { process, what: Asked::Method(method.to_owned(), on), connection: 1 }
    }

    fn on(rules: Rules, queue: &str) -> On {
        let lock = LockName::new("x").unwrap().with_protocol(rules.protocol().unwrap());
        On::read(Some(&lock), queue)
    }

    #[test]
    fn queues_are_named_by_their_slot() {
        assert_eq!(on(Rules::ExclusiveQueue, "x-2-A"), On::Slot(2, 'A'));
        assert_eq!(on(Rules::ExclusiveQueue, "x-2-B"), On::Slot(2, 'B'));
        assert_eq!(on(Rules::ExclusiveQueue, "x-2-C"), On::Slot(2, 'C'));
        assert_eq!(on(Rules::ExclusiveQueue, "x-2-F"), On::Slot(2, 'F'));
        assert_eq!(on(Rules::ExclusiveConsumer, "x-3-C"), On::Slot(3, 'C'));
        assert_eq!(on(Rules::AmqpLocksPython, "x-A-2"), On::Slot(2, 'A'));
        assert_eq!(on(Rules::AmqpLocksPython, "x-B-2"), On::Slot(2, 'B'));
        assert_eq!(on(Rules::ExclusiveQueue, "x"), On::Queue("N".to_owned()));
        assert_eq!(on(Rules::ExclusiveQueue, "x-W"), On::Queue("N-W".to_owned()));
        assert_eq!(on(Rules::ExclusiveQueue, "y-1-A"), On::Queue("y-1-A".to_owned()));
        assert_eq!(on(Rules::ExclusiveQueue, ""), On::Unknown);
    }

    #[test]
    fn requests_about_one_queue_depend_on_its_changes() {
        let declare = |process| request(process, "queue.declare", On::Slot(1, 'B'));
        let look = |process| request(process, "queue.declare(passive)", On::Slot(1, 'B'));
        assert!(declare(1).depends_on(&look(2)) && look(2).depends_on(&declare(1)));
        assert!(declare(1).depends_on(&declare(2)) && !look(1).depends_on(&look(2)));
        let probe = request(2, "basic.publish", On::Slot(1, 'B'));
        assert!(declare(1).depends_on(&probe) && !look(1).depends_on(&probe));
        let wakes = |process| request(process, "basic.publish", On::Queue("N-W".to_owned()));
        assert!(wakes(1).depends_on(&wakes(2)) && !wakes(1).depends_on(&declare(2)));
        assert!(look(1).depends_on(&request(2, "basic.ack", On::Unknown)));
        assert!(look(1).depends_on(&Request {
            process: 2,
            what: Asked::Begin(Verb::Release),
            connection: 0
        }));
    }

    #[test]
    fn requests_about_one_slot_depend_on_its_creation_and_deletion() {
        let on_slot = |method: &str| request(1, method, On::Slot(1, 'A'));
        let (create, delete) = (on_slot("queue.declare"), on_slot("queue.delete"));
        for part in ['B', 'C', 'F'] {
            let look = |slot| request(2, "queue.declare(passive)", On::Slot(slot, part));
            assert!(create.depends_on(&look(1)) && look(1).depends_on(&create));
            assert!(!create.depends_on(&look(2)) && !delete.depends_on(&look(1)));
            let take = request(2, "basic.consume", On::Slot(1, part));
            assert!(delete.depends_on(&take) && take.depends_on(&delete));
            assert!(!on_slot("queue.declare(passive)").depends_on(&take));
        }
        let look = request(2, "queue.declare(passive)", On::Slot(1, 'A'));
        assert!(delete.depends_on(&look) && look.depends_on(&delete));
    }

    #[test]
    fn only_the_creation_of_a_slot_above_the_last_one_matters() {
        assert!(request(1, "basic.publish", On::Slot(2, 'A')).is_beyond(1));
        assert!(request(1, "queue.delete", On::Slot(2, 'A')).is_beyond(1));
        assert!(!request(1, "basic.publish", On::Slot(2, 'A')).is_beyond(2));
        assert!(!request(1, "queue.declare", On::Slot(2, 'B')).is_beyond(1));
    }
}
