//! Finds requests to acquire that were refused although there was room (S10): for a long time
//! until the refusal, fewer processes could hold a slot than there were slots, according to the
//! answers or to the broker; and those that were refused before their time limit. See `blame` for
//! the causes.

use std::collections::BTreeMap;

use super::holds::Reported;
use super::ownership::{Owned, Ownerships, Thing};
use super::register::{NEVER, Position, Register, Write};
use crate::driver::message::{FULL, UNSUPPORTED};
use crate::history::{ConnectionState, History, Operation, Phase, ProcessState, Verb, What};

/// A client must find a free slot within this time, in milliseconds, if it was free when the
/// client began, or was released.
pub const ROOM_MS: u64 = 2_000;

/// As [`ROOM_MS`], if the slot may have become free or new in another way, which wakes no waiter:
/// waiters look twice after up to 6 s (docs/protocols/persistent-semaphore.md, "Waiting").
pub const UNANNOUNCED_ROOM_MS: u64 = 8_000;

/// The least part of its time limit after which a request may be refused, in percent.
const LEAST_WAIT: u64 = 90;

/// A refusal while there was room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The process.
    pub process: u32,
    /// The start of the time with room.
    pub from: Position,
    /// The length of that time, in milliseconds: [`ROOM_MS`] or [`UNANNOUNCED_ROOM_MS`].
    pub room_ms: u64,
    /// The refusal.
    pub done: Position,
    /// The smallest possible number of slots in that time.
    pub slots: u32,
    /// The largest possible number of slots that processes held or were acquiring in that time,
    /// or that the broker gave them.
    pub busy: u32,
}

/// Requests to acquire that may wait for at least [`ROOM_MS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The number of those that were granted.
    pub granted: u64,
    /// Those that were refused although there was room.
    pub refused: Vec<Refused>,
    /// Those that were refused too early.
    pub early: Vec<Early>,
}

/// A refusal of a request that may wait, long before its time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Early {
    /// The process.
    pub process: u32,
    /// The refusal.
    pub done: Position,
    /// The time from the request to the refusal, in milliseconds.
    pub after_ms: u64,
    /// The time limit, in milliseconds.
    pub wait_ms: u64,
}

/// A time in which a process may have held a slot.
struct Busy {
    from: Position,
    to: Position,
}

/// Finds the requests that may wait, and those of them that were refused although there was
/// room. Requests during which a fault hit the process or the broker are not judged.
pub fn waits(history: &History, reported: &Reported, ownerships: Option<&Ownerships>) -> Waits {
    let mut waits = Waits::default();
    let requests = requests(history);
    let mut busy = None;
    let least = least(history.header.slots, &reported.resizes);
    for request in requests.iter().filter(|request| request.may_wait) {
        if request.phase == Phase::Ok {
            waits.granted += 1;
            continue;
        }
        waits.early.extend(early(history, request, &least));
        let Some((from, room_ms)) = room_from(history, request) else { continue };
        let busy = busy.get_or_insert_with(|| holds(reported, &requests));
        // The request itself is one of those that overlap.
        let overlap = busy.iter().filter(|one| one.from <= request.done && one.to >= from).count();
        let overlap = overlap.saturating_sub(1).min(owned(ownerships, from, request.done));
        let overlap = u32::try_from(overlap).unwrap_or(u32::MAX);
        let slots = u32::MAX - least.max(from, request.done);
        if overlap < slots {
            let (process, done) = (request.process, request.done);
            let refused = Refused { process, from, room_ms, done, slots, busy: overlap };
            waits.refused.push(refused);
        }
    }
    waits
}

/// A request to acquire.
struct Request {
    process: u32,
    invoked: Position,
    /// The answer. [`NEVER`] if there is none.
    done: Position,
    /// The kind of the answer. [`Phase::Invoke`] if there is none.
    phase: Phase,
    /// Whether it may wait for at least [`ROOM_MS`].
    may_wait: bool,
    /// Its time limit, in milliseconds.
    wait_ms: u64,
    /// Whether no slot was free, according to the answer.
    is_full: bool,
}

fn requests(history: &History) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    for (at, event) in history.events.iter().enumerate() {
        let What::Operation(operation) = &event.what else { continue };
        let Operation { process, phase, .. } = *operation;
        if operation.verb != Verb::Acquire {
            continue;
        }
        if phase == Phase::Invoke {
            let wait_ms = operation.wait_ms.unwrap_or_default();
            requests.push(Request {
                process,
                invoked: at,
                done: NEVER,
                phase,
                may_wait: wait_ms >= ROOM_MS,
                wait_ms,
                is_full: false,
            });
            continue;
        }
        let mut open = requests.iter_mut().rev();
        if let Some(open) = open.find(|one| one.process == process && one.done == NEVER) {
            let unsupported = operation.why.as_deref() == Some(UNSUPPORTED);
            open.may_wait &= !(phase == Phase::Fail && unsupported);
            open.is_full = operation.why.as_deref() == Some(FULL);
            (open.done, open.phase) = (at, phase);
        }
    }
    requests
}

/// Returns the position from which a slot that was free must have been found, and its distance
/// from the refusal. Returns `None` if the request did not wait that long or a fault hit it.
fn room_from(history: &History, request: &Request) -> Option<(Position, u64)> {
    let events = &history.events;
    let before = |room_ms: u64| {
        let start = events.get(request.done)?.at.checked_sub(room_ms * 1000)?;
        let from = events.partition_point(|event| event.at < start);
        (from >= request.invoked).then_some((from, room_ms))
    };
    let (near, _) = before(ROOM_MS)?;
    // The broker may notice the end of a connection only after the request has looked.
    let noticed = events[request.invoked].at.saturating_sub(ROOM_MS * 1000);
    let earlier = events.partition_point(|event| event.at < noticed);
    let earlier = events[earlier..request.invoked].iter().map(|event| &event.what);
    let earlier = earlier.filter(|what| !matches!(what, What::Operation(_)));
    let during = events[request.invoked..near].iter().map(|event| &event.what);
    let announced = !earlier.chain(during).any(frees_silently);
    let (from, room_ms) = before(if announced { ROOM_MS } else { UNANNOUNCED_ROOM_MS })?;
    (!is_hit(history, request)).then_some((from, room_ms))
}

/// Returns whether a fault hit the process or the broker during the request.
fn is_hit(history: &History, request: &Request) -> bool {
    history.events[request.invoked..=request.done].iter().any(|event| match event.what {
        What::Fault { process, .. } => process.is_none_or(|one| one == request.process),
        _ => false,
    })
}

/// Returns the request if it was refused for want of a free slot, long before its time limit. A
/// lock without slots is not waited for.
fn early(history: &History, request: &Request, least: &Register) -> Option<Early> {
    let &Request { process, invoked, done, wait_ms, is_full, .. } = request;
    let after_ms = (history.events.get(done)?.at - history.events[invoked].at) / 1000;
    let is_early = is_full && after_ms < wait_ms * LEAST_WAIT / 100;
    let has_slots = least.max(invoked, done) < u32::MAX;
    (is_early && has_slots && !is_hit(history, request)).then_some(Early {
        process,
        done,
        after_ms,
        wait_ms,
    })
}

/// Returns whether a slot may become free or new at this event without a wake-up.
fn frees_silently(what: &What) -> bool {
    match what {
        What::Fault { .. } | What::Lost { .. } => true,
        What::Process { state, .. } => *state != ProcessState::Started,
        What::Connection { state, .. } => *state != ConnectionState::Opened,
        What::Operation(operation) => matches!(operation.verb, Verb::Resize | Verb::Destroy),
        What::Frame(_) => false,
    }
}

/// Returns the times in which processes may have held a slot: from each request to acquire until
/// its refusal, or until the answer to the release, or until the end of the process. A process
/// that acquires again has given up a lost slot, and a slot that an unknown result may have granted.
fn holds(reported: &Reported, requests: &[Request]) -> Vec<Busy> {
    let ended = |process: u32| reported.ended.get(&process).copied().unwrap_or(NEVER);
    let acquired = reported.grants.iter().filter(|grant| !grant.claimed);
    let ends: BTreeMap<Position, Position> =
        acquired.map(|grant| (grant.invoked, grant.end)).collect();
    let mut busy: Vec<Busy> = Vec::new();
    for request in requests {
        let over = match request.phase {
            Phase::Ok => ends.get(&request.invoked).copied().unwrap_or(NEVER),
            _ => request.done,
        };
        let next = reported.next_request(request.process, over);
        let refused = request.phase == Phase::Fail;
        let to = if refused { request.done } else { ended(request.process).min(next) };
        busy.push(Busy { from: request.invoked, to });
    }
    for released in &reported.released {
        let Some(grant) = released.grant.and_then(|grant| reported.grants.get(grant)) else {
            continue;
        };
        let at = busy.partition_point(|one| one.from < grant.invoked);
        if let Some(one) = busy.get_mut(at).filter(|one| one.from == grant.invoked) {
            one.to = one.to.min(released.done);
        }
    }
    busy
}

/// Returns how often the broker may have given a slot to a client in this time.
fn owned(ownerships: Option<&Ownerships>, from: Position, to: Position) -> usize {
    let Some(ownerships) = ownerships else { return usize::MAX };
    let is_slot = |owned: &&Owned| owned.thing != Thing::Mutex;
    let overlaps = |owned: &&Owned| owned.possible.from <= to && owned.possible.to >= from;
    ownerships.owned.iter().filter(is_slot).filter(overlaps).count()
}

/// Returns the smallest possible number of slots over time, as the complement of the largest.
fn least(initial: u32, resizes: &[Write]) -> Register {
    let complement = |write: &Write| Write { value: u32::MAX - write.value, ..*write };
    let resizes: Vec<Write> = resizes.iter().map(complement).collect();
    Register::new(u32::MAX - initial, &resizes)
}

#[cfg(test)]
mod tests;
