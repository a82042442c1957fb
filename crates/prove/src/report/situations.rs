//! Counts the situations in a history that test an implementation: contention, resizes, and
//! faults that took effect. See `sometimes` for the number that a grade requires.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::check::Examined;
use crate::check::holds::Key;
use crate::check::register::{NEVER, Position};
use crate::driver::message::{FULL, UNSUPPORTED};
use crate::history::{
    CUT, ConnectionState, Event, Frame, History, KILL, KILL_ALONE, Operation, Phase, ProcessState,
    Sender, Verb, What,
};
use crate::run::aims::{AFTER, BEFORE, is_request};

/// Reply codes with which a broker refuses a resource that another connection owns.
const TAKEN: [u16; 2] = [403, 405];

/// Number of occurrences of each situation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Situations {
    /// Resizes to fewer slots while one of the removed slots was held.
    pub shrunk_while_held: u64,
    /// Resizes to fewer slots while another process was acquiring.
    pub shrunk_while_acquired: u64,
    /// Verifications of a held slot after the end of the resize that removed it.
    #[serde(default)]
    pub verified_removed: u64,
    /// Acquires of a process that already held, and those of them that it does not support.
    #[serde(default)]
    pub acquired_again: [u64; 2],
    /// Requests for a slot that the broker refused because another connection had acquired it
    /// first.
    pub lost_races: u64,
    /// Acquires that found no free slot until their time limit.
    #[serde(default)]
    pub timed_out: u64,
    /// Acquires that might wait for [`VERY_LONG_MS`].
    #[serde(default)]
    pub very_long_waits: u64,
    /// Operations of a holder more than 1 s after a cut of its connections.
    #[serde(default)]
    pub long_after_cut: u64,
    /// Grants to a process that had lost its slot, or whose last operations had failed.
    #[serde(default)]
    pub granted_after_failure: u64,
    /// Clients of the workload that were alive when the last slot was acquired.
    #[serde(default)]
    pub alive_at_end: u64,
    /// Faults that took effect, by their kind and the state of the process.
    pub faults: BTreeMap<String, u64>,
    /// The methods that each operation sent.
    pub methods: Vec<Hits>,
}

/// How often an operation sent a method, and how often a cut hit it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// The operation.
    pub verb: Verb,
    /// The method, for example `queue.declare`.
    pub method: String,
    /// Number of operations that sent the method.
    pub sent: u64,
    /// Number of all operations of this kind.
    pub operations: u64,
    /// Number of cuts before the method passed: the broker did not receive it.
    pub before: u64,
    /// Number of cuts after the method passed: the client did not receive the answer.
    pub after: u64,
}

/// The longest time limit of an acquire in a run, in milliseconds.
pub const VERY_LONG_MS: u64 = 6_000;

/// Time within which a holder must notice that its connections were cut, in microseconds.
const NOTICE_US: u64 = 1_000_000;

/// Name of a fault, including the state of the process.
pub const KILL_HOLDING: &str = "kill during a hold";
/// See [`KILL_HOLDING`].
pub const KILL_COMMAND: &str = "kill of the command alone during a hold";
/// See [`KILL_HOLDING`].
pub const KILL_ACQUIRING: &str = "kill during an acquire";
/// See [`KILL_HOLDING`].
pub const CUT_HOLDING: &str = "cut during a hold";
/// See [`KILL_HOLDING`].
pub const CUT_RESIZING: &str = "cut in resize";
/// See [`KILL_HOLDING`].
pub const KILL_RESIZING: &str = "kill in resize";

/// Counts the situations.
pub(crate) fn read(history: &History, examined: &Examined) -> Situations {
    let mut reader = Reader::new(history.header.slots, examined);
    for (at, event) in history.events.iter().enumerate() {
        reader.event(at, event);
    }
    let mut situations = reader.situations;
    for ((verb, method), [sent, before, after]) in reader.methods {
        let operations = reader.operations.get(&verb).copied().unwrap_or_default();
        situations.methods.push(Hits { verb, method, sent, operations, before, after });
    }
    shrinks(history, examined, &mut situations);
    situations.alive_at_end = alive_at_end(examined);
    situations
}

/// Returns the number of processes that are alive at the last grant. A process that acquires only
/// once may be one that acquires after the last fault, so it does not count.
fn alive_at_end(examined: &Examined) -> u64 {
    let reported = &examined.reported;
    let Some(last) = reported.grants.iter().rfind(|grant| !grant.claimed) else { return 0 };
    let ended = |process: &u32| reported.ended.get(process).is_some_and(|&end| end < last.granted);
    let several = reported.requests.iter().filter(|(_, requests)| requests.len() > 1);
    let alive = several.filter(|&(process, _)| *process != last.process && !ended(process));
    u64::try_from(alive.count()).unwrap_or(u64::MAX)
}

/// The sides of a method, with the position of their counts.
const SIDES: [(&str, usize); 2] = [(BEFORE, 1), (AFTER, 2)];

/// What the pending operation of a process is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Asked {
    /// An acquire with a time limit that is not 0.
    Wait,
    /// The acquire of a process that holds.
    Again,
    /// The verification of a slot that was removed.
    Removed,
    #[default]
    Other,
}

/// The state of a process.
#[derive(Default)]
struct Process {
    pending: Option<(Verb, Position)>,
    /// The methods that the pending operation has sent.
    sent: BTreeSet<String>,
    /// The fault that has not taken effect yet.
    fault: Option<Fault>,
    /// The number of slots that the pending operation requests.
    resized: Option<u32>,
    asked: Asked,
    /// When its connections were cut while it held, if it has executed no operation since.
    cut_at: Option<u64>,
    /// Whether it lost its slot, or an operation failed, since its last grant.
    failed: bool,
}

struct Fault {
    kind: String,
    pending: Option<Verb>,
    holds: bool,
}

/// The begin, the end and the slot of a hold.
type Held = (Position, Position, Option<u32>);

struct Reader {
    /// The holds of each process, in the order of time.
    holds: BTreeMap<u32, Vec<Held>>,
    /// The number of slots, unless it is being changed.
    slots: Option<u32>,
    processes: BTreeMap<u32, Process>,
    operations: BTreeMap<Verb, u64>,
    methods: BTreeMap<(Verb, String), [u64; 3]>,
    situations: Situations,
}

impl Reader {
    fn new(slots: u32, examined: &Examined) -> Self {
        let mut holds: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for grant in &examined.reported.grants {
            let slot = match grant.key {
                Some(Key::Slot(slot)) => Some(slot),
                _ => None,
            };
            holds.entry(grant.process).or_default().push((grant.granted, grant.end, slot));
        }
        Self {
            holds,
            slots: Some(slots),
            processes: BTreeMap::new(),
            operations: BTreeMap::new(),
            methods: BTreeMap::new(),
            situations: Situations::default(),
        }
    }

    /// Returns whether the process held at this position, or until it.
    fn holds(&self, process: u32, at: Position) -> bool {
        self.held(process, at).is_some()
    }

    /// Returns the hold of the process at this position, or until it.
    fn held(&self, process: u32, at: Position) -> Option<&Held> {
        let all = self.holds.get(&process).map_or(&[][..], Vec::as_slice);
        let begun = all.partition_point(|&(granted, ..)| granted < at);
        all[..begun].last().filter(|&&(_, end, _)| end >= at)
    }

    /// Returns what an operation is for a process in its state.
    fn asked(&self, operation: &Operation, at: Position) -> Asked {
        let held = self.held(operation.process, at);
        let is_removed = |&(.., slot): &Held| slot.zip(self.slots).is_some_and(|(a, b)| a > b);
        match operation.verb {
            Verb::Acquire if held.is_some() => Asked::Again,
            Verb::Acquire if operation.wait_ms.is_some_and(|wait| wait > 0) => Asked::Wait,
            Verb::Verify if held.is_some_and(is_removed) => Asked::Removed,
            _ => Asked::Other,
        }
    }

    fn event(&mut self, at: Position, event: &Event) {
        match &event.what {
            What::Operation(operation) => {
                let asked = self.asked(operation, at);
                let process = self.processes.entry(operation.process).or_default();
                if operation.phase == Phase::Invoke {
                    process.pending = Some((operation.verb, at));
                    process.sent.clear();
                    let wait = operation.wait_ms.unwrap_or_default();
                    (process.asked, process.resized) = (asked, operation.slots);
                    let late = process.cut_at.take().is_some_and(|cut| event.at > cut + NOTICE_US);
                    self.situations.long_after_cut += u64::from(late);
                    self.situations.very_long_waits += u64::from(wait >= VERY_LONG_MS);
                    *self.operations.entry(operation.verb).or_default() += 1;
                    if operation.verb == Verb::Resize {
                        self.slots = None;
                    }
                } else {
                    process.pending = None;
                    self.answer(operation);
                }
            }
            What::Lost { process, .. } => self.processes.entry(*process).or_default().failed = true,
            What::Frame(frame) => self.frame(frame),
            What::Fault { fault, .. } if fault == KILL_ALONE => {
                *self.situations.faults.entry(KILL_COMMAND.to_owned()).or_default() += 1;
            }
            What::Fault { process: Some(process), fault } => {
                let holds = self.holds(*process, at);
                let state = self.processes.entry(*process).or_default();
                let pending = state.pending.map(|(verb, _)| verb);
                state.fault = Some(Fault { kind: fault.clone(), pending, holds });
            }
            What::Connection { process, state: ConnectionState::Cut, .. } => {
                self.effective(*process, event.at, false);
            }
            What::Process { process, state: ProcessState::Killed, .. } => {
                self.effective(*process, event.at, true);
            }
            _ => {}
        }
    }

    fn answer(&mut self, operation: &Operation) {
        let process = self.processes.entry(operation.process).or_default();
        let unsupported = operation.why.as_deref() == Some(UNSUPPORTED);
        let again = process.asked == Asked::Again;
        self.situations.acquired_again[0] += u64::from(again);
        self.situations.acquired_again[1] += u64::from(again && unsupported);
        let answered = !unsupported && operation.phase != Phase::Info;
        self.situations.verified_removed += u64::from(process.asked == Asked::Removed && answered);
        match (operation.verb, operation.phase) {
            (Verb::Resize, Phase::Ok) => self.slots = process.resized,
            (Verb::Acquire, Phase::Ok) => {
                let failed = std::mem::take(&mut process.failed);
                self.situations.granted_after_failure += u64::from(failed);
            }
            (Verb::Acquire, Phase::Fail) => {
                let full = operation.why.as_deref() == Some(FULL);
                self.situations.timed_out += u64::from(full && process.asked == Asked::Wait);
            }
            (Verb::Acquire | Verb::Verify | Verb::Release, Phase::Info) => process.failed = true,
            (Verb::Verify | Verb::Believes | Verb::Release, Phase::Fail) => {
                process.failed |= !unsupported;
            }
            _ => {}
        }
    }

    fn frame(&mut self, frame: &Frame) {
        let refused = frame.method == "channel.close" && frame.sender == Sender::Broker;
        let process = self.processes.entry(frame.process).or_default();
        let Some((verb, _)) = process.pending else { return };
        if refused && verb == Verb::Acquire && frame.code.is_some_and(|code| TAKEN.contains(&code))
        {
            self.situations.lost_races += 1;
        }
        let request = frame.sender == Sender::Client && is_request(&frame.method);
        if request && process.sent.insert(frame.method.clone()) {
            self.methods.entry((verb, frame.method.clone())).or_default()[0] += 1;
        }
    }

    /// Records that the fault of a process took effect: the process was killed, or one of its
    /// connections was cut.
    fn effective(&mut self, process: u32, at: u64, killed: bool) {
        let state = self.processes.entry(process).or_default();
        let Some(fault) = state.fault.take_if(|fault| (fault.kind == KILL) == killed) else {
            return;
        };
        let verb = fault.pending;
        state.cut_at = (fault.kind == CUT && verb.is_none() && fault.holds).then_some(at);
        let name = match (&*fault.kind, verb, fault.holds) {
            (KILL, Some(Verb::Acquire), _) => KILL_ACQUIRING.to_owned(),
            (KILL, _, true) => KILL_HOLDING.to_owned(),
            (CUT, None, true) => CUT_HOLDING.to_owned(),
            (kind, Some(verb), _) => format!("{kind} in {}", verb.name()),
            (kind, None, _) => format!("{kind} while idle"),
        };
        *self.situations.faults.entry(name).or_default() += 1;
        for (side, index) in SIDES {
            if let (Some(method), Some(verb)) = (fault.kind.strip_prefix(side), verb) {
                self.methods.entry((verb, method.to_owned())).or_default()[index] += 1;
            }
        }
    }
}

/// Counts the resizes to fewer slots during a hold of a removed slot, or during an acquire.
fn shrinks(history: &History, examined: &Examined, situations: &mut Situations) {
    let mut slots = history.header.slots;
    let acquires = acquires(history);
    for resize in &examined.reported.resizes {
        let (from, to) = (resize.invoked, resize.done);
        let shrinks = resize.value < slots && to != NEVER;
        slots = resize.value;
        if !shrinks {
            continue;
        }
        let begun = examined.reported.grants.partition_point(|grant| grant.granted < to);
        let mut held = examined.reported.grants[..begun].iter().filter(|grant| grant.end > from);
        let numbered = |key: &Option<Key>| matches!(key, Some(Key::Slot(_)));
        let removed = held
            .clone()
            .any(|grant| matches!(grant.key, Some(Key::Slot(slot)) if slot > resize.value));
        // Tokens have no slot number. A held token is removed if more tokens are held than
        // remain.
        let unnumbered = held.all(|grant| !numbered(&grant.key));
        let before = examined.reported.grants[..begun].iter();
        let at_once = before.filter(|grant| grant.granted < from && grant.end > from).count();
        let surplus = unnumbered && at_once > resize.value as usize;
        situations.shrunk_while_held += u64::from(removed || surplus);
        let during = |&(begun, ended): &(Position, Position)| begun < to && ended > from;
        situations.shrunk_while_acquired += u64::from(acquires.iter().any(during));
    }
}

/// Returns the requests and answers of all acquires.
fn acquires(history: &History) -> Vec<(Position, Position)> {
    let mut pending = BTreeMap::new();
    let mut acquires = Vec::new();
    for (at, event) in history.events.iter().enumerate() {
        let What::Operation(operation) = &event.what else { continue };
        if operation.verb != Verb::Acquire {
            continue;
        }
        if operation.phase == Phase::Invoke {
            pending.insert(operation.process, at);
        } else if let Some(begun) = pending.remove(&operation.process) {
            acquires.push((begun, at));
        }
    }
    acquires
}

#[cfg(test)]
mod tests;
