//! The lanes of a picture: the holds of each process, and the ownership of each slot at the
//! broker. See `scene` for the choice of processes and slots.

use super::drawing::{Bar, Swimlane, Tick};
use super::scene::{Scene, Subject};
use super::time::{length, second};
use crate::check::holds::Key;
use crate::check::ownership::{Change, Ended, Owned, SlotChange};
use crate::check::register::{NEVER, Position};
use crate::history::{ConnectionState, Operation, Phase, ProcessState, Sender, What};

/// Maximum number of characters of a token's id in the name of its lane.
const SHOWN: usize = 6;

/// Returns one lane for each process.
pub(super) fn processes(scene: &Scene<'_>) -> Vec<Swimlane> {
    scene.processes.iter().map(|&process| of_process(scene, process)).collect()
}

fn of_process(scene: &Scene<'_>, process: u32) -> Swimlane {
    let mut bars = Vec::new();
    for grant in scene.examined.reported.grants.iter().filter(|grant| grant.process == process) {
        let Some((from, to)) = scene.places(grant.granted, grant.end) else { continue };
        let held = grant.key.as_ref().map_or("a slot".to_owned(), ToString::to_string);
        let label = match &grant.key {
            Some(Key::Token(token)) => end(token),
            _ => format!("holds {held}"),
        };
        let interval = interval(scene, grant.granted, grant.end);
        let hover = format!("process {process} held {held} {interval}");
        bars.push(Bar { process, from, to, certain: true, label, hover });
    }
    let (mut ticks, mut faults) = (Vec::new(), Vec::new());
    for &at in &scene.shown {
        let Some(event) = scene.history.events.get(at) else { continue };
        let place = scene.place(at);
        let tick = |label: String, hover: String| {
            let hover = format!("{hover}, at {}", second(event.at));
            Tick { at: place, label, hover }
        };
        match &event.what {
            What::Operation(operation) if operation.process == process => {
                let (label, hover) = described(operation);
                ticks.push(tick(label, hover));
            }
            What::Lost { process: one, why } if *one == process => {
                ticks.push(tick("lost".to_owned(), format!("reported a loss: {why}")));
            }
            What::Process { process: one, state, .. } if *one == process => {
                let label = match state {
                    ProcessState::Started => "started",
                    ProcessState::Killed => "ended",
                    ProcessState::Exited => "exited",
                };
                ticks.push(tick(label.to_owned(), format!("process {process} {label}")));
            }
            What::Connection { process: one, connection, state } if *one == process => {
                let (label, how) = closed(*state);
                ticks.push(tick(label.to_owned(), format!("connection {connection} {how}")));
            }
            What::Fault { process: one, fault } if one.is_none_or(|one| one == process) => {
                faults.push(tick(fault.clone(), format!("fault: {fault}")));
            }
            _ => {}
        }
    }
    Swimlane { name: format!("process {process}"), bars, ticks, faults }
}

fn closed(state: ConnectionState) -> (&'static str, &'static str) {
    match state {
        ConnectionState::Opened => ("opened", "was opened"),
        ConnectionState::ClosedByClient => ("closed", "was closed by the client"),
        ConnectionState::ClosedByBroker => ("closed", "was closed by the broker"),
        ConnectionState::Cut => ("cut", "was cut by the prover"),
    }
}

/// Returns the label and the hover text of a request or an answer.
fn described(operation: &Operation) -> (String, String) {
    let verb = operation.verb.name();
    let slots = operation.slots.map(|slots| format!(" {slots}")).unwrap_or_default();
    let slot = operation.slot.map(|slot| format!(" slot {slot}")).unwrap_or_default();
    let token = operation.token.as_ref().map(|token| format!(" token {token}")).unwrap_or_default();
    let draining = if operation.draining { " draining" } else { "" };
    let details = format!("{slots}{slot}{token}{draining}");
    let why = operation.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    match operation.phase {
        Phase::Invoke => (format!("{verb}{slots}"), format!("{verb}{details} requested")),
        Phase::Ok => ("ok".to_owned(), format!("{verb} answered ok{details}")),
        Phase::Fail => ("fail".to_owned(), format!("{verb} answered fail{why}")),
        Phase::Info => ("info".to_owned(), format!("{verb} answered info{why}")),
    }
}

/// Returns one lane for each slot.
pub(super) fn broker(scene: &Scene<'_>) -> Vec<Swimlane> {
    scene.subjects.iter().map(|subject| of_subject(scene, subject)).collect()
}

fn of_subject(scene: &Scene<'_>, subject: &Subject) -> Swimlane {
    let name = match subject {
        Subject::Held(Key::Token(token)) => format!("token {}", end(token)),
        Subject::Held(key) => key.to_string(),
        Subject::Tokens(process) => format!("tokens of {process}"),
        Subject::Queue => "token queue".to_owned(),
        Subject::Mutex => "admin mutex".to_owned(),
    };
    let mut lane = Swimlane { name, bars: Vec::new(), ticks: Vec::new(), faults: Vec::new() };
    let mut named: Vec<Position> = Vec::new();
    for owned in scene.owned(subject) {
        lane.bars.extend(bars(scene, owned, &lane.name));
        named.extend([owned.certain.from, owned.certain.to, owned.possible.to]);
    }
    for change in scene.changes(subject) {
        named.extend([change.at, change.done]);
        if scene.shown.contains(&change.at) {
            lane.bars.extend(change_bar(scene, change));
        }
    }
    for &at in scene.shown.iter().filter(|at| named.contains(at)) {
        let Some(event) = scene.history.events.get(at) else { continue };
        let What::Frame(frame) = &event.what else { continue };
        let sender = if frame.sender == Sender::Client { "to" } else { "from" };
        let label = frame.method.split_once('.').map_or(&*frame.method, |(_, method)| method);
        let hover = format!(
            "{} {} {sender} the broker, connection {} of process {}, at {}",
            frame.method,
            frame.queue,
            frame.connection,
            frame.process,
            second(event.at)
        );
        lane.ticks.push(Tick { at: scene.place(at), label: label.to_owned(), hover });
    }
    lane
}

/// Returns the bars of an ownership: the certain part, and the possible parts before and after
/// it.
fn bars(scene: &Scene<'_>, owned: &Owned, name: &str) -> Vec<Bar> {
    let certain_end = owned.certain.to.max(owned.certain.from);
    let who = format!("process {}, connection {}", owned.process, owned.connection);
    let hover = format!(
        "{who} owned {name} {}: {}",
        interval(scene, owned.certain.from, certain_end),
        ended(owned.ended)
    );
    let maybe = format!("{who} may own {name} here");
    let parts = [
        (owned.possible.from, owned.certain.from, false, String::new(), maybe.clone()),
        (owned.certain.from, certain_end, true, who, hover),
        (certain_end, owned.possible.to, false, String::new(), maybe),
    ];
    let bar = |(from, to, certain, label, hover)| {
        let (from, to) = scene.places(from, to)?;
        Some(Bar { process: owned.process, from, to, certain, label, hover })
    };
    parts.into_iter().filter_map(bar).collect()
}

/// Returns the last characters of the id of a token, in which ids differ most.
fn end(token: &str) -> String {
    let from = token.char_indices().rev().nth(SHOWN - 1).map_or(0, |(index, _)| index);
    let mark = if from > 0 { "…" } else { "" };
    format!("{mark}{}", &token[from..])
}

fn change_bar(scene: &Scene<'_>, change: &SlotChange) -> Option<Bar> {
    let (from, to) = scene.places(change.at, change.done)?;
    let done = match change.change {
        Change::Declared => "declares it",
        Change::Deleted => "deletes it",
        Change::DeletedHolder => "deletes its queue C",
        Change::DeletedRecord => "deletes its record",
        Change::DeletedWaiters => "deletes the wait queue",
        Change::Published => "publishes",
    };
    let label = format!("process {} {done}", change.process);
    let (process, hover) = (change.process, label.clone());
    Some(Bar { process, from, to, certain: false, label, hover })
}

fn ended(ended: Ended) -> &'static str {
    match ended {
        Ended::Open => "it did not end in this run",
        Ended::Released => "the client ended it",
        Ended::ChannelClosed => "the client closed the channel",
        Ended::Disconnected => "the client closed the connection",
        Ended::Cut => "the prover cut the connection",
        Ended::Broker => "the broker ended it",
        Ended::Cancelled => "the broker cancelled the consumer",
    }
}

fn interval(scene: &Scene<'_>, from: Position, to: Position) -> String {
    let (begun, last) = (scene.time(from), scene.history.events.len());
    if to == NEVER || to >= last {
        return format!("from {} to the end of the run", second(begun));
    }
    let lasted = length(scene.time(to).saturating_sub(begun));
    format!("from {} for {lasted}", second(begun))
}
