//! Tests of slot records: tokens only increase, and how long a slot rests.

use proptest::prelude::*;

use super::*;

const DELAY: Duration = Duration::from_secs(15);

fn held(token: u64) -> SlotRecord {
    let found = SlotRecord::seed(token - 1, String::new(), DELAY, RecordState::Released);
    SlotRecord::acquired(Some(&found), "4fz", String::new(), 0, None).0
}

fn released(token: u64) -> SlotRecord {
    held(token).given_back(String::new())
}

fn seed(token: u64, state: RecordState) -> SlotRecord {
    SlotRecord::seed(token, String::new(), DELAY, state)
}

fn merge(found: &[SlotRecord]) -> SlotRecord {
    let bodies: Vec<Vec<u8>> = found.iter().map(SlotRecord::to_json).collect();
    SlotRecord::merge(bodies.iter().map(Vec::as_slice)).unwrap()
}

/// Returns the token of the next acquisition and how long it rests.
fn next(found: &[SlotRecord]) -> (u64, Duration) {
    let found = merge(found);
    let (next, rest) = SlotRecord::acquired(Some(&found), "x", String::new(), 3, None);
    (next.token, rest)
}

#[test]
fn each_acquisition_has_a_greater_token_whatever_happened_before() {
    assert_eq!(next(&[held(7)]), (8, DELAY));
    assert_eq!(next(&[released(7)]), (8, Duration::ZERO));
    assert_eq!(next(&[seed(7, RecordState::Released)]), (8, Duration::ZERO));
    assert_eq!(next(&[seed(7, RecordState::Held)]), (8, DELAY));
}

#[test]
fn a_lost_record_counts_as_an_unclean_end() {
    let (first, rest) = SlotRecord::acquired(None, "x", String::new(), 99, Some(DELAY));
    assert_eq!((first.token, first.delay, rest), (99, 15_000, DELAY));
    let (_, rest) = SlotRecord::acquired(None, "x", String::new(), 99, None);
    assert_eq!(rest, Duration::ZERO, "the delay was lost with the record");
}

#[test]
fn the_newest_known_lock_delay_is_obeyed_and_passed_on() {
    let newer = Some(Duration::from_secs(40));
    let (next, wait) = SlotRecord::acquired(Some(&held(7)), "x", String::new(), 0, newer);
    assert_eq!((next.delay, wait), (40_000, Duration::from_secs(40)));
    let (next, _) = SlotRecord::acquired(Some(&held(7)), "x", String::new(), 0, None);
    assert_eq!(next.delay, 15_000);
}

#[test]
fn of_two_records_that_a_crash_left_the_later_one_counts() {
    assert_eq!(next(&[held(7), held(8)]), (9, DELAY));
    for found in [[held(8), released(8)], [released(8), held(8)]] {
        assert_eq!(next(&found), (9, Duration::ZERO), "{found:?}");
    }
    assert_eq!(SlotRecord::merge([b"?".as_slice()]), None);
}

#[test]
fn a_seed_never_hides_how_the_last_holder_ended() {
    let (clean, unclean) = (RecordState::Released, RecordState::Held);
    assert_eq!(next(&[held(7), seed(50, clean)]), (51, DELAY));
    assert_eq!(next(&[seed(50, unclean), released(7)]), (51, Duration::ZERO));
    assert_eq!(next(&[seed(50, clean), seed(40, unclean)]), (51, DELAY));
}

#[test]
fn a_rest_continues_where_the_last_client_stopped() {
    let (mut record, mut left) = SlotRecord::acquired(Some(&held(7)), "a", String::new(), 0, None);
    assert_eq!((left, record.rested()), (DELAY, Duration::ZERO));
    let step = Duration::from_secs(4);
    for attempt in 1..=3u32 {
        let rested = record.rested() + step;
        record = record.resting(rested).given_back(String::new());
        assert_eq!(record.state, RecordState::Held, "a rest is not a clean release");
        (record, left) = SlotRecord::acquired(Some(&record), "a", String::new(), 0, None);
        assert_eq!(left, DELAY.saturating_sub(step * attempt));
    }
    let done = record.begun(String::new());
    assert_eq!((done.rested, done.state), (None, RecordState::Held));
    // From here on the slot was used, so an unclean end starts a new rest.
    assert_eq!(next(&[done]).1, DELAY);
}

#[test]
fn of_two_recorded_rests_the_shorter_one_counts() {
    let rested = |millis| held(8).resting(Duration::from_millis(millis));
    assert_eq!(merge(&[rested(9_000), rested(2_000)]).rested, Some(2_000));
    assert_eq!(merge(&[held(8), rested(9_000)]).rested, None, "it may have been used");
    assert_eq!(merge(&[released(8), rested(9_000)]).state, RecordState::Released);
}

/// Clients that don't support the field rest for the whole delay.
#[test]
fn a_rest_is_held_to_clients_that_know_no_rests() {
    let resting: serde_json::Value =
        serde_json::from_slice(&held(8).resting(DELAY).to_json()).unwrap();
    assert_eq!(resting["state"], "held");
    let used: serde_json::Value = serde_json::from_slice(&held(8).to_json()).unwrap();
    assert_eq!(used.get("rested"), None);
    let theirs = br#"{"token": 9, "holder": "b", "state": "held", "since": "", "delay": 15000}"#;
    assert_eq!(SlotRecord::merge([theirs.as_slice()]).unwrap().rested, None);
}

/// In a partition of the broker, its connection was regarded as gone.
#[test]
fn a_superseded_holder_does_not_end_the_acquisition_of_the_next_one() {
    let first = SlotRecord { holder: "a".to_owned(), ..held(7) };
    let (next, _) = SlotRecord::acquired(Some(&first), "b", String::new(), 0, None);
    let late = first.clone().given_back(String::new());
    assert_eq!(late.clone().above(Some(&next)), next, "it has not ended");
    assert_eq!(late.clone().above(Some(&first)), late);
    let seed = SlotRecord { holder: String::new(), ..held(9) };
    assert_eq!(late.clone().above(Some(&seed)), SlotRecord { token: 9, ..late });
}

proptest! {
    /// However often it is interrupted, a rest is never shorter than the delay, and
    /// longer at most by the unsaved time.
    #[test]
    fn rests_of_many_clients_add_up_to_the_delay(
        rests in proptest::collection::vec((0..20_000u64, 0..=100u64), 1..40),
    ) {
        let (mut record, mut left) =
            SlotRecord::acquired(Some(&held(7)), "a", String::new(), 0, None);
        let (mut rested, mut lost) = (Duration::ZERO, Duration::ZERO);
        for (millis, saved) in rests {
            let time = Duration::from_millis(millis).min(left);
            rested += time;
            if time == left {
                prop_assert!(rested >= DELAY);
                prop_assert!(rested <= DELAY + lost);
                return Ok(());
            }
            let saved = time * u32::try_from(saved).unwrap() / 100;
            lost += time.saturating_sub(saved) + Duration::from_millis(1);
            let before = record.rested();
            record = record.resting(before + saved).given_back(String::new());
            (record, left) = SlotRecord::acquired(Some(&record), "a", String::new(), 0, None);
        }
    }
}
