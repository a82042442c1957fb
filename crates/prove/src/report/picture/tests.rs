//! Tests the pictures of violations in small histories.

use super::scene::{EVENTS, nearest};
use super::*;
use crate::check::examine;
use crate::check::tests::Story;
use crate::check::verdict::Property;
use crate::history::{ConnectionState, Phase, Rules, Sender, Verb};

fn queue() -> Story {
    Story::new(Rules::ExclusiveQueue, 1)
}

/// Returns the picture of the first violation of a property.
fn drawn(story: Story, property: Property) -> Picture {
    let history = story.history();
    let examined = examine(&history).unwrap();
    let mut violations = examined.verdict.violations.iter();
    let violation = violations.find(|violation| violation.property == property).unwrap();
    picture(&history, &examined, violation)
}

fn names(lanes: &[Swimlane]) -> Vec<&str> {
    lanes.iter().map(|lane| &*lane.name).collect()
}

/// Returns a history in which a process continues for two seconds after its connection was cut.
fn unnoticed() -> Story {
    let cut = queue().acquires(1).fault(1, "cut").connection(1, ConnectionState::Cut);
    cut.acquires(2).after_ms(2000).lost(1)
}

#[test]
fn shows_holds_above_ownerships_and_the_overlap_across_both() {
    let picture = drawn(unnoticed(), Property::S2);
    assert_eq!(names(&picture.processes), ["process 1", "process 2"]);
    assert_eq!(names(&picture.broker), ["slot 1"]);
    assert_eq!(picture.red.label, "overlap 2.001 s: S2, cause CLIENT");
    let [first, second] = [0, 1].map(|lane| &picture.processes[lane].bars[0]);
    assert_eq!((picture.red.from, picture.red.to), (second.from, first.to));
    assert!(first.from < picture.red.from && second.to >= picture.red.to);
    let owners: Vec<u32> =
        picture.broker[0].bars.iter().filter(|bar| bar.certain).map(|bar| bar.process).collect();
    assert_eq!(owners, [1, 2]);
    let time = &picture.columns[picture.red.from / 2].time;
    assert_eq!(time, "0");
}

#[test]
fn draws_a_fault_in_the_lane_of_its_process() {
    let picture = drawn(unnoticed(), Property::S2);
    let labels = |lane: usize| -> Vec<&str> {
        picture.processes[lane].faults.iter().map(|fault| &*fault.label).collect()
    };
    assert_eq!((labels(0), labels(1)), (vec!["cut"], Vec::new()));
}

#[test]
fn shows_at_most_thirty_events_with_the_violation_among_them() {
    let mut story = queue();
    for _ in 0..20 {
        story = story.acquires(1).releases(1);
    }
    story = story.acquires(1).ask(2, Verb::Acquire).granted(2, 1);
    for _ in 0..20 {
        story = story.ask(2, Verb::Verify).ok(2, Verb::Verify);
    }
    let picture = drawn(story, Property::S2);
    assert_eq!(picture.columns.len(), EVENTS);
    let at = picture.columns.iter().position(|column| column.time == "0").unwrap();
    // The events that led to the violation are before it.
    assert!(at > EVENTS / 2, "{at}");
    let right = 2 * picture.columns.len();
    for lane in picture.processes.iter().chain(&picture.broker) {
        assert!(lane.bars.iter().all(|bar| bar.from < bar.to && bar.to <= right));
        assert!(lane.ticks.iter().all(|tick| tick.at % 2 == 1 && tick.at < right));
    }
}

#[test]
fn keeps_the_needed_events_and_those_nearest_to_the_violation() {
    let candidates = (0..1000).map(|one| one * 10).collect();
    let shown = nearest(&candidates, 5000, &[0, 5000]);
    assert_eq!(shown.len(), EVENTS);
    assert_eq!(shown[0], 0);
    assert!(shown.is_sorted());
    let before = shown.iter().filter(|&&one| 0 < one && one < 5000).count();
    let after = shown.iter().filter(|&&one| one > 5000).count();
    assert_eq!((before, after), (19, 9));
}

#[test]
fn marks_the_verification_that_was_answered_wrongly() {
    let story = queue()
        .acquires(1)
        .connection(1, ConnectionState::Cut)
        .after_ms(1500)
        .ask(1, Verb::Verify)
        .ok(1, Verb::Verify);
    let picture = drawn(story, Property::S5);
    assert_eq!(picture.red.label, "claim 1.0 ms: S5, cause CLIENT");
    let ticks: Vec<(Place, &str)> =
        picture.processes[0].ticks.iter().map(|tick| (tick.at, &*tick.label)).collect();
    assert!(ticks.contains(&(picture.red.from, "verify")), "{ticks:?}");
    assert!(ticks.contains(&(picture.red.to, "ok")), "{ticks:?}");
}

#[test]
fn shows_the_token_that_remains_after_a_release() {
    let [one, other] = ["1795622096373692", "1795622096373693"];
    let story = Story::new(Rules::Token, 2)
        .ask(1, Verb::Acquire)
        .get(1, 1, other)
        .get(1, 2, one)
        .granted_token(1, one)
        .ask(1, Verb::Release)
        .frame(Sender::Client, 1, "basic.reject", |frame| frame.delivery = Some(2))
        .ok(1, Verb::Release)
        .after_ms(300)
        .fault(1, "kill")
        .connection(1, ConnectionState::ClosedByClient);
    let picture = drawn(story, Property::S6);
    assert_eq!(names(&picture.broker), ["token …373692", "token …373693"]);
    assert!(picture.red.label.starts_with("left for 301.0 ms: S6"), "{}", picture.red.label);
    let left = &picture.broker[1].bars;
    assert!(left.iter().any(|bar| bar.from < picture.red.from && bar.to == picture.red.to));
}

#[test]
fn shows_only_holds_if_the_broker_was_not_observed() {
    let story = Story::new(Rules::None, 1).ask(1, Verb::Acquire).granted(1, 1);
    let picture = drawn(story.ask(2, Verb::Acquire).granted(2, 1), Property::S2);
    assert_eq!(names(&picture.processes), ["process 1", "process 2"]);
    assert_eq!(names(&picture.broker), Vec::<&str>::new());
    assert!(picture.red.label.starts_with("overlap more than "), "{}", picture.red.label);
}

#[test]
fn shows_the_reason_of_an_answer_in_the_hover_text() {
    let asked = unnoticed().ask(2, Verb::Release);
    let mut history = asked.ok(2, Verb::Release).history();
    let answer = history.events.last_mut().unwrap();
    let crate::history::What::Operation(operation) = &mut answer.what else { unreachable!() };
    (operation.phase, operation.why) = (Phase::Info, Some("a <reason>".to_owned()));
    let examined = examine(&history).unwrap();
    let picture = picture(&history, &examined, &examined.verdict.violations[0]);
    let tick = picture.processes[1].ticks.last().unwrap();
    assert_eq!(tick.label, "info");
    assert!(tick.hover.starts_with("release answered info: a <reason>, at "), "{}", tick.hover);
}

#[test]
fn writes_durations_in_a_readable_unit() {
    let written = [0, 999, 1000, 12_345, 999_999, 12_345_678].map(length);
    assert_eq!(written, ["0 µs", "999 µs", "1.0 ms", "12.3 ms", "999.9 ms", "12.345 s"]);
}
