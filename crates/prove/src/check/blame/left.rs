//! Checks S6 and PS-10: when a process goes on with its next operation, it owns nothing at the
//! broker except the slot or token of its grant. See `answers` for leftovers of a release itself.

use std::collections::BTreeMap;

use super::{Judge, NOTICE_US, backing_of, is_of};
use crate::check::ownership::{Ended, Owned, Ownerships, Thing};
use crate::check::register::Position;
use crate::check::verdict::{Cause, Property};
use crate::driver::message::{FULL, UNSUPPORTED};
use crate::history::{KILL, Operation, Phase, ProcessState, Rules, Verb, What};

/// What a process may own, according to its answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum May {
    /// The slot or token of this grant, as an index.
    Hold(usize),
    /// Nothing: its attempt to acquire, with this request, failed.
    Failed(Position),
    /// Nothing: it lost or released its slot or token.
    Ended,
    /// Anything: it is unknown whether its attempt to acquire, with this request, succeeded.
    Attempt(Position),
    /// Anything: it is unknown whether its release succeeded.
    Release,
}

/// The state of one process.
struct State {
    may: May,
    /// The current request, and what the process might own at that time.
    pending: Option<(Position, May)>,
}

/// An answered operation.
struct Answered<'a> {
    operation: &'a Operation,
    invoked: Position,
    at: Position,
    /// What the process might own at the request.
    may: May,
    /// The grant or claim of the answer.
    grant: Option<usize>,
}

impl Judge<'_> {
    /// Checks for leftovers when each process has executed its next operation.
    pub(super) fn left(&mut self, ownerships: &Ownerships) {
        let mut processes: BTreeMap<u32, State> = BTreeMap::new();
        let history = self.history;
        for (at, event) in history.events.iter().enumerate() {
            match &event.what {
                What::Operation(operation) => {
                    let state = processes.entry(operation.process);
                    let state = state.or_insert(State { may: May::Ended, pending: None });
                    self.operation(ownerships, state, at, operation);
                }
                What::Lost { process, .. } => {
                    if let Some(state) = processes.get_mut(process) {
                        state.may = May::Ended;
                    }
                }
                What::Process { process, state, .. } if *state != ProcessState::Started => {
                    processes.remove(process);
                }
                What::Fault { process: Some(process), fault } if fault == KILL => {
                    processes.remove(process);
                }
                _ => {}
            }
        }
    }

    fn operation(
        &mut self,
        ownerships: &Ownerships,
        state: &mut State,
        at: Position,
        operation: &Operation,
    ) {
        if matches!(operation.verb, Verb::Resize | Verb::Count | Verb::Destroy) {
            return;
        }
        if operation.phase == Phase::Invoke {
            state.pending = Some((at, state.may));
            return;
        }
        let unsupported = operation.why.as_deref() == Some(UNSUPPORTED);
        let Some((invoked, may)) = state.pending.take().filter(|_| !unsupported) else { return };
        let grants = &self.reported.grants;
        let index = grants.partition_point(|grant| grant.granted < at);
        let grant = grants.get(index).filter(|grant| grant.granted == at).map(|_| index);
        let answered = Answered { operation, invoked, at, may, grant };
        if let Some(owned) = self.leftover(ownerships, &answered) {
            self.report(&answered, owned);
        }
        state.may = after(state.may, &answered);
    }

    /// Returns what the process certainly owned before the operation, still owns after it, and
    /// was not granted.
    fn leftover<'a>(&self, ownerships: &'a Ownerships, answered: &Answered) -> Option<&'a Owned> {
        let Answered { operation, invoked, at, may, grant } = *answered;
        let Operation { process, verb, phase, .. } = *operation;
        let all = ownerships.of(process, at, at).filter(|owned| owned.thing != Thing::Mutex);
        let kept = |owned: &&Owned| owned.certain.from < invoked && owned.certain.to > at;
        let mut mine: Vec<&Owned> = all.filter(kept).collect();
        if let Some(grant) = grant {
            let key = self.reported.grants[grant].key.as_ref();
            let before = mine.iter().copied().find(|owned| is_of(owned, key));
            // The attempt before got it, and said that it failed.
            if let (May::Failed(since), Some(owned)) = (may, before)
                && owned.possible.from > since
            {
                return Some(owned);
            }
            self.take(ownerships, grant, &mut mine);
        }
        if let May::Hold(held) = may {
            self.take(ownerships, held, &mut mine);
            let also = || self.also_released(ownerships, held, answered);
            return mine.first().copied().or_else(also);
        }
        // The answer says that the process holds, or may hold.
        let full = operation.why.as_deref() == Some(FULL);
        let unknown = matches!(may, May::Attempt(_) | May::Release);
        let open = match verb {
            Verb::Acquire if unknown => phase == Phase::Info || (phase == Phase::Fail && !full),
            Verb::Acquire => phase == Phase::Info,
            Verb::Release => unknown && phase != Phase::Ok,
            _ => phase != Phase::Fail,
        };
        // An attempt that failed has left nothing. In other cases, the client may be closing its
        // connection.
        let strict = |owned: &Owned| {
            let failed = matches!(may, May::Failed(since) if owned.possible.from > since);
            failed && verb == Verb::Acquire
        };
        mine.into_iter().find(|owned| !open && (strict(owned) || !self.ends_soon(owned, at)))
    }

    /// Removes what a grant names. If the process never owned that, removes the newest.
    fn take(&self, ownerships: &Ownerships, grant: usize, mine: &mut Vec<&Owned>) {
        let grant = &self.reported.grants[grant];
        let named = mine.iter().position(|owned| is_of(owned, grant.key.as_ref()));
        let unbacked = || backing_of(ownerships, grant).is_none() && !mine.is_empty();
        if let Some(index) = named.or_else(|| unbacked().then_some(0)) {
            mine.remove(index);
        }
    }

    /// Returns an ownership that the process released after the one of its grant, on the same
    /// connection: then it had not released it before.
    fn also_released<'a>(
        &self,
        ownerships: &'a Ownerships,
        held: usize,
        answered: &Answered,
    ) -> Option<&'a Owned> {
        let Answered { operation, invoked, at, .. } = *answered;
        if operation.verb != Verb::Release {
            return None;
        }
        let grant = &self.reported.grants[held];
        let released = |owned: &&Owned| {
            let before = owned.certain.from < grant.granted && owned.thing != Thing::Mutex;
            before && owned.ended == Ended::Released && (invoked..=at).contains(&owned.end)
        };
        let all = || ownerships.of(operation.process, invoked, at).filter(released);
        let held = all().filter(|owned| is_of(owned, grant.key.as_ref()));
        let held = held.min_by_key(|owned| owned.end)?;
        let later = |owned: &&Owned| owned.end > held.end && owned.connection == held.connection;
        all().find(later)
    }

    /// Returns whether the client or its end ends the ownership soon after this position, or may
    /// do so in the rest of a history that continues.
    fn ends_soon(&self, owned: &Owned, at: Position) -> bool {
        let (events, limit) = (self.history.events.len(), self.at(at) + NOTICE_US);
        let soon = |end: Position| end < events && self.at(end) <= limit;
        let process = self.reported.ended.get(&owned.process);
        (owned.ended.by_owner() && soon(owned.end))
            || process.is_some_and(|&end| soon(end))
            || (self.continues && self.at(events) <= limit)
    }

    fn report(&mut self, answered: &Answered, owned: &Owned) {
        if !self.leftovers.insert((owned.process, owned.certain.from)) {
            return;
        }
        let Owned { process, connection, .. } = *owned;
        let thing = super::name(owned.key());
        let by_queue =
            matches!(self.history.header.protocol, Rules::ExclusiveQueue | Rules::AmqpLocksPython);
        let attempt = match answered.may {
            May::Failed(since) | May::Attempt(since) => owned.possible.from > since,
            _ => false,
        };
        let rule = (by_queue && attempt).then_some("PS-10");
        let property = if rule.is_some() { Property::Rule } else { Property::S6 };
        let id = rule.map_or_else(String::new, |rule| format!("{rule}: "));
        let what = match answered.may {
            May::Hold(grant) => {
                let granted = super::name(self.reported.grants[grant].key.as_ref());
                format!("was granted {granted}, but connection {connection} also owned {thing}")
            }
            May::Failed(_) if attempt => format!("failed to acquire, but still owns {thing}"),
            May::Failed(_) | May::Ended => {
                format!("held nothing, but connection {connection} still owned {thing}")
            }
            May::Attempt(_) | May::Release => {
                format!("went on after an operation with an unknown result, but still owns {thing}")
            }
        };
        let what = format!("{id}process {process} {what}");
        self.violation_of(rule, (property, Cause::Client), answered.at, &[process], what);
    }
}

/// Returns what a process may own after an answer.
fn after(may: May, answered: &Answered) -> May {
    let Operation { verb, phase, .. } = *answered.operation;
    let full = answered.operation.why.as_deref() == Some(FULL);
    match (verb, phase) {
        (_, Phase::Ok) if answered.grant.is_some() => answered.grant.map_or(may, May::Hold),
        (Verb::Acquire, Phase::Info) => May::Attempt(answered.invoked),
        // A process that holds, or may hold, refuses another acquisition.
        (Verb::Acquire, Phase::Fail) => match may {
            May::Hold(_) => may,
            May::Attempt(_) | May::Release if !full => may,
            _ => May::Failed(answered.invoked),
        },
        (Verb::Verify | Verb::Believes, Phase::Fail) | (Verb::Release, Phase::Ok) => May::Ended,
        (Verb::Release, _) if may != May::Ended => May::Release,
        _ => may,
    }
}
