//! Reads the processes' answers: each hold with its holder and interval, and every resize. A
//! hold covers only the time in which the program certainly relied on it. See `sweep` for how
//! holds are judged, and `ownership` for the state of the broker.

use std::collections::BTreeMap;

use super::register::{NEVER, Position, Write};
use crate::driver::message::{FULL, UNSUPPORTED};
use crate::history::{
    ConnectionState, Event, History, KILL, KILL_ALONE, Operation, Phase, ProcessState, Rules, Verb,
    What,
};

/// The resource of an exclusive hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A slot, from 1.
    Slot(u32),
    /// A token with a unique id.
    Token(String),
}

impl Key {
    /// Returns the token's key, or `None` if the id is not unique: in protocol Token, clients of
    /// the blog publish every token as `1`.
    pub fn of_token(rules: Rules, id: &str) -> Option<Self> {
        let unique =
            rules != Rules::Token || id.parse().is_ok_and(|id: u64| id >= 1_000_000_000_000_000);
        unique.then(|| Self::Token(id.to_owned()))
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "slot {slot}"),
            Self::Token(token) => write!(f, "token {token}"),
        }
    }
}

/// A successful acquisition and the hold that it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The process.
    pub process: u32,
    /// The slot or token, or `None` if it is unknown.
    pub key: Option<Key>,
    /// When the acquisition was requested.
    pub invoked: Position,
    /// When it was answered. The hold begins here.
    pub granted: Position,
    /// When the hold ends: the program released it, learned of its loss, or ended.
    pub end: Position,
    /// When the broker may have given the slot to another connection, if that is before the end.
    pub freed: Option<Position>,
    /// Whether it is no acquisition: the process said that it held, although its last acquisition
    /// was not answered ok, or although it had released or lost that slot.
    pub claimed: bool,
}

impl Grant {
    /// Returns from when another process may have acquired the slot.
    pub fn free_from(&self) -> Position {
        self.freed.map_or(self.end, |freed| freed.min(self.end))
    }
}

/// An answered operation of a process that had acquired before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The process.
    pub process: u32,
    /// The process's last grant before the request, as an index.
    pub grant: Option<usize>,
    /// The request.
    pub invoked: Position,
    /// The answer.
    pub done: Position,
    /// Verify: whether the slot is held but being removed.
    pub draining: bool,
}

/// All holds and resizes that the processes reported.
#[derive(Clone, Debug, Default)]
pub struct Reported {
    /// The grants, in the order of the answers.
    pub grants: Vec<Grant>,
    /// Changes of the number of slots that were or may have been applied.
    pub resizes: Vec<Write>,
    /// The processes and intervals of all resizes, including failed ones.
    pub administering: Vec<(u32, Position, Position)>,
    /// Verifications that were answered "held".
    pub verified: Vec<Answer>,
    /// Answers that the process considers the slot held, without a question to the broker.
    pub believed: Vec<Answer>,
    /// Releases that were answered ok.
    pub released: Vec<Answer>,
    /// Number of acquisitions that found no free slot.
    pub refusals: u64,
    /// Number of answered verifications.
    pub verifications: u64,
    /// Number of resizes that were answered ok.
    pub resized: u64,
    /// When each process was asked to acquire.
    pub requests: BTreeMap<u32, Vec<Position>>,
    /// When each process was killed or ended.
    pub ended: BTreeMap<u32, Position>,
}

impl Reported {
    /// Returns when the process was next asked to acquire after this position.
    pub fn next_request(&self, process: u32, at: Position) -> Position {
        let all = self.requests.get(&process).map_or(&[][..], Vec::as_slice);
        all.get(all.partition_point(|&request| request <= at)).copied().unwrap_or(NEVER)
    }

    /// Returns whether the process was executing a resize at this position.
    pub fn administers(&self, process: u32, at: Position) -> bool {
        let covers =
            |&(who, from, to): &(u32, Position, Position)| who == process && from <= at && at <= to;
        self.administering.iter().any(covers)
    }
}

/// The state of one process.
#[derive(Default)]
struct Process<'a> {
    /// The unanswered request.
    pending: Option<(Position, &'a Operation)>,
    /// The grant whose hold has not ended.
    open: Option<usize>,
    /// The last grant.
    last: Option<usize>,
    /// The request of the last answered acquisition, and whether it was granted.
    acquired: Option<(Position, bool)>,
    /// Whether it held when its current operation was requested.
    held: bool,
    /// The first end of a connection since the last answer. If the process turns out to have
    /// ended, it had ended by then.
    closed: Option<Position>,
    /// Whether its work was left running when it was killed, so that its hold goes on.
    outlived: bool,
}

/// Reads the processes' answers from a history.
pub fn read(history: &History) -> Reported {
    let mut reader = Reader { rules: history.header.protocol, ..Reader::default() };
    for (at, event) in history.events.iter().enumerate() {
        reader.event(at, event);
    }
    // Requests without an answer may have been executed.
    for (process, state) in std::mem::take(&mut reader.processes) {
        reader.abandon(process, state.pending, NEVER);
    }
    reader.reported
}

struct Reader<'a> {
    rules: Rules,
    reported: Reported,
    processes: BTreeMap<u32, Process<'a>>,
}

impl Default for Reader<'_> {
    fn default() -> Self {
        Self { rules: Rules::None, reported: Reported::default(), processes: BTreeMap::new() }
    }
}

impl<'a> Reader<'a> {
    fn event(&mut self, at: Position, event: &'a Event) {
        match &event.what {
            What::Operation(operation) => match operation.phase {
                Phase::Invoke => self.invoke(at, operation),
                _ => self.answer(at, operation),
            },
            What::Lost { process, .. } => self.end_hold(*process, at),
            What::Process {
                process, state: ProcessState::Killed | ProcessState::Exited, ..
            } => {
                self.end_process(*process, at);
            }
            // The fault is recorded before the signal is sent, and the end of the process after
            // it. In between, the answer to its request may still arrive.
            What::Fault { process: Some(process), fault } if fault == KILL => {
                self.may_have_ended(*process, at);
            }
            What::Fault { process: Some(process), fault } if fault == KILL_ALONE => {
                self.processes.entry(*process).or_default().outlived = true;
            }
            What::Connection { process, state: ConnectionState::ClosedByClient, .. } => {
                self.processes.entry(*process).or_default().closed.get_or_insert(at);
            }
            _ => {}
        }
    }

    fn end_hold(&mut self, process: u32, at: Position) {
        let state = self.processes.entry(process).or_default();
        if let Some(grant) = state.open.take() {
            self.reported.grants[grant].end = at;
        }
    }

    /// Ends the hold of a process that no longer certainly exists.
    fn may_have_ended(&mut self, process: u32, at: Position) {
        self.reported.ended.entry(process).or_insert(at);
        let state = self.processes.entry(process).or_default();
        let closed = state.closed.filter(|_| !state.outlived);
        self.end_hold(process, closed.unwrap_or(at));
    }

    fn end_process(&mut self, process: u32, at: Position) {
        self.may_have_ended(process, at);
        let pending = self.processes.entry(process).or_default().pending.take();
        self.abandon(process, pending, at);
    }

    /// Records that a request will not be answered: it may have been executed.
    fn abandon(&mut self, process: u32, pending: Option<(Position, &Operation)>, at: Position) {
        let Some((invoked, operation)) = pending else { return };
        let Some(value) = new_size(operation) else { return };
        self.reported.administering.push((process, invoked, at));
        self.reported.resizes.push(Write { invoked, done: NEVER, value });
    }

    fn invoke(&mut self, at: Position, operation: &'a Operation) {
        let process = operation.process;
        let open = self.processes.entry(process).or_default().open;
        match operation.verb {
            Verb::Release => self.end_hold(process, at),
            Verb::Acquire => {
                // A claim is certain only until then.
                if open.is_some_and(|open| self.reported.grants[open].claimed) {
                    self.end_hold(process, at);
                }
                self.reported.requests.entry(process).or_default().push(at);
            }
            _ => {}
        }
        let state = self.processes.entry(process).or_default();
        state.held = open.is_some();
        let before = state.pending.replace((at, operation));
        self.abandon(process, before, at);
    }

    fn answer(&mut self, at: Position, operation: &'a Operation) {
        let process = operation.process;
        let state = self.processes.entry(process).or_default();
        state.closed = None;
        let (invoked, request) = match state.pending.take() {
            Some(pending) if pending.1.verb == operation.verb => pending,
            _ => (at, operation),
        };
        let answer =
            Answer { process, grant: state.last, invoked, done: at, draining: operation.draining };
        let done = operation.phase == Phase::Ok;
        let failed = operation.phase == Phase::Fail;
        let unsupported = failed && operation.why.as_deref() == Some(UNSUPPORTED);
        match operation.verb {
            _ if unsupported => {}
            Verb::Acquire if done => self.grant(invoked, at, operation),
            Verb::Acquire => {
                state.acquired = Some((invoked, false));
                let full = failed && operation.why.as_deref() == Some(FULL);
                self.reported.refusals += u64::from(full);
            }
            Verb::Verify => {
                self.reported.verifications += 1;
                if done {
                    self.reported.verified.push(answer);
                    self.claim(process, at);
                } else if failed {
                    self.end_hold(process, at);
                }
            }
            Verb::Believes if done => {
                self.reported.believed.push(answer);
                self.claim(process, at);
            }
            Verb::Believes if failed => self.end_hold(process, at),
            Verb::Release if done => self.reported.released.push(answer),
            Verb::Resize | Verb::Destroy => {
                let size = new_size(request).or_else(|| new_size(operation));
                self.resize((invoked, at), process, size, operation.phase);
            }
            Verb::Believes | Verb::Release | Verb::Count => {}
        }
    }

    fn grant(&mut self, invoked: Position, granted: Position, operation: &Operation) {
        let process = operation.process;
        self.end_hold(process, granted);
        let slot = operation.slot.filter(|_| self.rules != Rules::Token).map(Key::Slot);
        let token = operation.token.as_deref();
        let key = slot.or_else(|| token.and_then(|token| Key::of_token(self.rules, token)));
        let index = self.reported.grants.len();
        // The answer of a process that may have ended begins no hold.
        let lives = !self.reported.ended.contains_key(&process);
        let end = if lives { NEVER } else { granted };
        let (freed, claimed) = (None, false);
        self.reported.grants.push(Grant { process, key, invoked, granted, end, freed, claimed });
        let state = self.processes.entry(process).or_default();
        state.acquired = Some((invoked, true));
        (state.open, state.last) = (lives.then_some(index), Some(index));
    }

    /// Begins the hold of a process that says that it holds, although no acquisition began one
    /// that lasts. If it learned of a loss during the operation, the answer may be older.
    fn claim(&mut self, process: u32, at: Position) {
        let ended = self.reported.ended.contains_key(&process);
        let state = self.processes.entry(process).or_default();
        let Some((invoked, granted)) = state.acquired else { return };
        if state.open.is_some() || state.held || ended {
            return;
        }
        let last = state.last.filter(|_| granted).and_then(|last| self.reported.grants.get(last));
        let key = last.and_then(|last| last.key.clone());
        let index = self.reported.grants.len();
        (state.open, state.last) = (Some(index), Some(index));
        let (granted, end, freed, claimed) = (at, NEVER, None, true);
        self.reported.grants.push(Grant { process, key, invoked, granted, end, freed, claimed });
    }

    fn resize(
        &mut self,
        (invoked, at): (Position, Position),
        process: u32,
        size: Option<u32>,
        phase: Phase,
    ) {
        self.reported.administering.push((process, invoked, at));
        let done = if phase == Phase::Ok { at } else { NEVER };
        self.reported.resized += u64::from(phase == Phase::Ok);
        if let (Some(value), false) = (size, phase == Phase::Fail) {
            self.reported.resizes.push(Write { invoked, done, value });
        }
    }
}

/// Returns the number of slots that a resize or destroy requests.
fn new_size(operation: &Operation) -> Option<u32> {
    match operation.verb {
        Verb::Destroy => Some(0),
        Verb::Resize => operation.slots,
        _ => None,
    }
}
