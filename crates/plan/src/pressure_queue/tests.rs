//! Tests of the decisions about pressure queues.

use proptest::prelude::*;

use super::*;

const OPEN: DesiredQueue = DesiredQueue { bound: 10, state: DesiredState::Open };
const CLOSED: DesiredQueue = DesiredQueue { bound: 10, state: DesiredState::Closed };
const NEW: PreviousStatus = PreviousStatus { existed: false, closed: false };
const WAS_OPEN: PreviousStatus = PreviousStatus { existed: true, closed: false };
const WAS_CLOSED: PreviousStatus = PreviousStatus { existed: true, closed: true };

/// A used queue whose roles are free.
pub(super) fn used(bound: u64, length: u64) -> ObservedQueue {
    let role = |id: &str| Role { id: Some(id.to_owned()), busy: false };
    ObservedQueue {
        bound: Some(bound),
        length,
        not_full: u64::from(bound == 0 || length < bound),
        producer: role("p"),
        consumer: role("c"),
        producer_free: 1,
        consumer_free: 1,
        produced_messages: length + 7,
        consumed_messages: 7,
        ..ObservedQueue::default()
    }
}

pub(super) fn fresh(bound: u64) -> ObservedQueue {
    ObservedQueue {
        bound: Some(bound),
        not_full: 1,
        producer_free: 1,
        consumer_free: 1,
        ..ObservedQueue::default()
    }
}

fn expect(
    (desired, seen, past): (&DesiredQueue, &ObservedQueue, PreviousStatus),
    effects: &[QueueEffect],
    remarks: &[Remark],
) {
    let plan = plan(desired, seen, &past);
    assert_eq!(plan.effects, effects, "{desired:?} {seen:?} {past:?}");
    assert_eq!(plan.remarks, remarks, "{desired:?} {seen:?} {past:?}");
}

#[test]
fn a_queue_that_never_existed_is_created() {
    let absent = ObservedQueue::default();
    expect((&OPEN, &absent, NEW), &[QueueEffect::Create { bound: 10 }], &[]);
    let then_close = [QueueEffect::Create { bound: 10 }, QueueEffect::Close];
    expect((&CLOSED, &absent, NEW), &then_close, &[]);
}

#[test]
fn a_queue_deleted_while_open_is_created_again_and_that_is_reported() {
    let effects = [QueueEffect::Create { bound: 10 }];
    expect((&OPEN, &ObservedQueue::default(), WAS_OPEN), &effects, &[Remark::Recreated]);
}

#[test]
fn a_queue_deleted_after_it_was_closed_is_complete() {
    let absent = ObservedQueue::default();
    expect((&OPEN, &absent, WAS_CLOSED), &[], &[Remark::Completed]);
    expect((&CLOSED, &absent, WAS_CLOSED), &[], &[Remark::Completed]);
    // Nor is one created again just to be closed.
    expect((&CLOSED, &absent, WAS_OPEN), &[], &[Remark::Completed]);
}

#[test]
fn leftovers_of_a_deletion_are_reported_whatever_the_past_was() {
    let keys = vec![":closed".to_owned(), DATA_LABEL.to_owned()];
    let seen = ObservedQueue { leftovers: keys.clone(), closed: true, ..ObservedQueue::default() };
    for past in [NEW, WAS_OPEN, WAS_CLOSED] {
        expect((&OPEN, &seen, past), &[], &[Remark::Residue { keys: keys.clone() }]);
    }
}

#[test]
fn a_queue_that_lost_its_bound_is_not_called_a_leftover_of_a_deletion() {
    let text = |keys: &[&str]| {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        Remark::Residue { keys }.to_string()
    };
    for lost in [
        &[DATA_LABEL][..],
        &[DATA_LABEL, ":closed"],
        &[":in_flight", ":leases", ":closed"],
        &[":producer_free", ":consumer_free", ":not_full"],
    ] {
        let text = text(lost);
        assert!(text.contains("lost its :bound") && text.contains("create --adopt"), "{text}");
        assert!(!text.contains("left over"), "{text}");
    }
    assert!(text(&[":closed", ":producer"]).contains(":closed :producer left over"));
}

#[test]
fn an_existing_queue_is_adopted_as_it_is() {
    expect((&OPEN, &used(10, 4), NEW), &[], &[]);
    expect((&OPEN, &fresh(10), NEW), &[], &[]);
}

#[test]
fn another_bound_is_set_also_on_a_closed_queue() {
    let effects = [QueueEffect::SetBound { bound: 10 }];
    expect((&OPEN, &used(3, 3), WAS_OPEN), &effects, &[]);
    let closed = ObservedQueue { closed: true, closed_tokens: 2, ..used(3, 3) };
    expect((&CLOSED, &closed, WAS_CLOSED), &effects, &[]);
}

#[test]
fn a_queue_closed_by_a_client_is_no_drift() {
    let closed = ObservedQueue { closed: true, closed_tokens: 2, ..used(10, 3) };
    expect((&OPEN, &closed, WAS_OPEN), &[], &[Remark::ClosedByClient]);
    expect((&CLOSED, &closed, WAS_OPEN), &[], &[]);
}

#[test]
fn the_bound_is_set_before_a_queue_is_closed() {
    let effects = [QueueEffect::SetBound { bound: 10 }, QueueEffect::Close];
    expect((&CLOSED, &used(3, 3), WAS_OPEN), &effects, &[]);
}

#[test]
fn a_busy_producer_delays_a_close_and_is_named() {
    let mut seen = used(10, 3);
    seen.producer.busy = true;
    seen.producer_free = 0;
    let who = Some("p".to_owned());
    let remarks = [Remark::WaitingForProducer { who }];
    expect((&CLOSED, &seen, WAS_OPEN), &[QueueEffect::Close], &remarks);
}

#[test]
fn more_elements_than_the_bound_allows_are_reported_and_kept() {
    let remarks = [Remark::Overfilled { length: 11, bound: 10 }];
    expect((&OPEN, &used(10, 11), WAS_OPEN), &[], &remarks);
    expect((&OPEN, &used(10, 10), WAS_OPEN), &[], &[]);
    // A lowered bound overfills the queue immediately.
    let effects = [QueueEffect::SetBound { bound: 10 }];
    expect((&OPEN, &used(20, 11), WAS_OPEN), &effects, &remarks);
    let unbounded = DesiredQueue { bound: 0, state: DesiredState::Open };
    expect((&unbounded, &used(0, 11), WAS_OPEN), &[], &[]);
}

#[test]
fn a_queue_whose_creator_has_not_finished_is_left_alone() {
    let mut seen = ObservedQueue { bound: Some(3), ..ObservedQueue::default() };
    let missing = |keys: &[&str]| Remark::HalfCreated {
        missing: keys.iter().map(|&key| key.to_owned()).collect(),
    };
    let all = missing(&[":producer_free", ":consumer_free", ":not_full"]);
    expect((&CLOSED, &seen, NEW), &[], &[all]);
    seen.producer_free = 1;
    expect((&CLOSED, &seen, NEW), &[], &[missing(&[":consumer_free", ":not_full"])]);
    seen.consumer_free = 1;
    expect((&OPEN, &seen, NEW), &[], &[missing(&[":not_full"])]);
}

#[test]
fn a_role_taken_on_a_fresh_queue_is_not_half_a_creation() {
    let mut seen = fresh(10);
    seen.producer = Role { id: Some("p".to_owned()), busy: true };
    seen.producer_free = 0;
    seen.not_full = 0;
    expect((&OPEN, &seen, WAS_OPEN), &[], &[]);
}

#[test]
fn a_queue_that_was_closed_and_is_open_again_is_reported() {
    expect((&OPEN, &used(10, 3), WAS_CLOSED), &[], &[Remark::Reopened]);
}

#[test]
fn nothing_is_changed_where_a_key_is_not_pressure_s() {
    let wrong_types = vec![":bound".to_owned()];
    for seen in [ObservedQueue::default(), used(3, 1)] {
        let seen = ObservedQueue { wrong_types: wrong_types.clone(), ..seen };
        expect((&CLOSED, &seen, NEW), &[], &[Remark::WrongType { key: ":bound".to_owned() }]);
    }
}

/// The effect of the scripts on a queue, simplified.
fn applied(mut seen: ObservedQueue, effect: &QueueEffect) -> ObservedQueue {
    match effect {
        QueueEffect::Create { bound } => return fresh(*bound),
        QueueEffect::SetBound { bound } => {
            seen.bound = Some(*bound);
            seen.not_full = u64::from(seen.has_room(*bound));
        }
        QueueEffect::Close if seen.producer_free > 0 => {
            (seen.closed, seen.closed_tokens) = (true, 2);
            seen.producer.id = Some("us".to_owned());
        }
        QueueEffect::Close => {}
    }
    seen
}

prop_compose! {
    fn any_wish()(bound in 0..6_u64, closed: bool) -> DesiredQueue {
        let state = if closed { DesiredState::Closed } else { DesiredState::Open };
        DesiredQueue { bound, state }
    }
}

prop_compose! {
    fn any_role()(id in proptest::option::of("[a-z]{1,3}"), free in 0..3_u64) -> (Role, u64) {
        (Role { id, busy: free == 0 }, free)
    }
}

prop_compose! {
    pub(super) fn any_seen()(
        bound in proptest::option::of(0..6_u64), length in 0..9_u64, closed_tokens in 0..3_u64,
        not_full in 0..3_u64, (producer, producer_free) in any_role(),
        (consumer, consumer_free) in any_role(), produced in 0..9_u64, consumed in 0..9_u64,
        left in proptest::sample::subsequence(vec!["(data)", ":closed", ":not_full"], 0..3),
        wrong in proptest::bool::weighted(0.1),
    ) -> ObservedQueue {
        ObservedQueue {
            bound, length, closed: closed_tokens > 0, closed_tokens, not_full,
            producer, consumer, producer_free, consumer_free,
            produced_messages: produced, consumed_messages: consumed,
            leftovers: left.iter().filter(|_| bound.is_none()).map(|&s| s.to_owned()).collect(),
            wrong_types: if wrong { vec![":closed".to_owned()] } else { Vec::new() },
            ..ObservedQueue::default()
        }
    }
}

proptest! {
    #[test]
    fn only_a_queue_without_any_key_is_created(
        desired in any_wish(), seen in any_seen(), existed: bool, closed: bool,
    ) {
        let plan = plan(&desired, &seen, &PreviousStatus { existed, closed });
        let creates = plan.effects.iter().any(|e| matches!(e, QueueEffect::Create { .. }));
        if creates {
            prop_assert!(seen.bound.is_none());
            prop_assert!(seen.leftovers.is_empty() && seen.wrong_types.is_empty());
            prop_assert!(!(existed && closed));
            prop_assert_eq!(existed, plan.remarks.contains(&Remark::Recreated));
        } else if seen.bound.is_none() {
            // In this case nothing is changed, and the reason is reported.
            prop_assert!(plan.effects.is_empty());
            prop_assert!(!plan.remarks.is_empty());
        }
    }

    #[test]
    fn once_applied_nothing_but_an_awaited_close_is_left_to_do(
        desired in any_wish(), seen in any_seen(), existed: bool, closed: bool,
    ) {
        let first = plan(&desired, &seen, &PreviousStatus { existed, closed });
        let after = first.effects.iter().fold(seen, applied);
        let second = plan(&desired, &after, &PreviousStatus { existed: after.bound.is_some(), closed });
        let is_awaited = |e: &QueueEffect| *e == QueueEffect::Close && after.producer.busy;
        if after.bound.is_some() {
            prop_assert!(second.effects.iter().all(is_awaited), "{after:?} {second:?}");
        }
    }

    #[test]
    fn an_open_queue_is_closed_only_when_asked_and_never_twice(
        desired in any_wish(), seen in any_seen(), existed: bool, closed: bool,
    ) {
        let plan = plan(&desired, &seen, &PreviousStatus { existed, closed });
        let closes = plan.effects.iter().filter(|e| **e == QueueEffect::Close).count();
        prop_assert!(closes <= 1);
        prop_assert!(closes == 0 || desired.state == DesiredState::Closed);
        prop_assert!(closes == 0 || !seen.closed || seen.bound.is_none());
    }

    #[test]
    fn every_remark_has_a_name_and_a_sentence(
        desired in any_wish(), seen in any_seen(), existed: bool, closed: bool,
    ) {
        for remark in plan(&desired, &seen, &PreviousStatus { existed, closed }).remarks {
            prop_assert!(remark.reason().chars().all(char::is_alphanumeric));
            prop_assert!(remark.to_string().len() > 20);
        }
    }
}

#[test]
fn the_result_of_an_effect_decides_which_condition_stays() {
    let busy = |who: &str| Remark::WaitingForProducer { who: Some(who.to_owned()) };
    let other = Remark::Overfilled { length: 3, bound: 2 };
    let keys = vec![":closed".to_owned()];
    let by = |who: &str| Applied::ProducerBusy { who: Some(who.to_owned()) };
    let (close, set) = (QueueEffect::Close, QueueEffect::SetBound { bound: 2 });
    for (effect, applied, left) in [
        (&set, Applied::Done, vec![busy("old"), other.clone()]),
        (&close, Applied::Done, vec![other.clone()]),
        (&close, Applied::AlreadySo, vec![other.clone()]),
        (&close, Applied::Absent, vec![other.clone()]),
        (&close, by("new"), vec![other.clone(), busy("new")]),
        (
            &QueueEffect::Create { bound: 2 },
            Applied::Residue { keys: keys.clone() },
            vec![busy("old"), other.clone(), Remark::Residue { keys: keys.clone() }],
        ),
    ] {
        let remarks = vec![busy("old"), other.clone()];
        let mut planned = QueuePlan { effects: Vec::new(), remarks };
        planned.record(effect, &applied);
        assert_eq!(planned.remarks, left, "{effect:?} {applied:?}");
    }
}

#[test]
fn each_effect_is_a_difference_and_a_queue_in_the_way_blocks_the_plan() {
    let lines = |desired: &DesiredQueue, seen: &ObservedQueue| -> (Vec<String>, bool) {
        let planned = plan(desired, seen, &NEW);
        let differences = planned.differences(seen);
        (differences.iter().map(ToString::to_string).collect(), planned.is_blocked())
    };
    let of = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
    let absent = ObservedQueue::default();
    assert_eq!(lines(&OPEN, &absent), (of(&["+ bound: 10"]), false));
    assert_eq!(lines(&CLOSED, &absent), (of(&["+ bound: 10", "+ state: Closed"]), false));
    let changed = of(&["~ bound: 5 -> 10", "~ state: Open -> Closed"]);
    assert_eq!(lines(&CLOSED, &used(5, 2)), (changed, false));
    assert_eq!(lines(&OPEN, &used(10, 2)), (vec![], false));
    let leftovers = ObservedQueue { leftovers: of(&[":closed"]), ..absent.clone() };
    let foreign = ObservedQueue { wrong_types: of(&[":bound"]), ..absent };
    let half_created = ObservedQueue { not_full: 0, producer_free: 0, ..fresh(10) };
    for seen in [leftovers, foreign, half_created] {
        assert_eq!(lines(&OPEN, &seen), (vec![], true), "{seen:?}");
    }
}
