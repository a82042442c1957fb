//! The slot record: the one message of `F[i]`, which says who held slot `i` last
//! and how that ended. Pure; how it is read and replaced is the room
//! `semaphore`'s. It gives each acquisition of a slot a greater token (fencing),
//! and lets the next holder wait after an unclean end (lock delay).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a slot record says. As JSON: `{"token": 1760000000000001, "holder":
/// "4fz…", "state": "held", "since": "2026-11-21T10:00:00Z", "delay": 15000}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// The fencing token of the last acquisition: greater than any before on
    /// this slot. The first is made from the microseconds since 1970, so that a
    /// semaphore that is deleted and created again never repeats one.
    pub token: u64,
    /// The last holder's id; empty if there was none yet.
    #[serde(default)]
    pub holder: String,
    /// How it stands with that holder.
    pub state: RecordState,
    /// When that began, RFC 3339.
    #[serde(default)]
    pub since: String,
    /// How long the next holder waits after an unclean end, in milliseconds.
    #[serde(default)]
    pub delay: u64,
}

/// How it stands with a slot's last holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordState {
    /// It acquired the slot. Whoever finds this while holding the slot itself
    /// knows that the last holder ended without releasing.
    Held,
    /// It gave the slot back, or there was none yet.
    Released,
}

impl SlotRecord {
    /// The record of a slot that nobody has held yet.
    #[must_use]
    pub fn seed(now_micros: u64, since: String, delay: Duration) -> Self {
        Self {
            token: now_micros,
            holder: String::new(),
            state: RecordState::Released,
            since,
            delay: millis(delay),
        }
    }

    /// The record that counts among those found: a crash between publishing a
    /// new record and acknowledging the old one leaves both. `None` if there is
    /// none that can be read.
    #[must_use]
    pub fn newest<'a>(bodies: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        bodies
            .into_iter()
            .filter_map(|body| serde_json::from_slice::<Self>(body).ok())
            // Of equals the last: "released" follows "held" with the same token.
            .max_by_key(|record| record.token)
    }

    /// The record of the next acquisition, and how long its holder has to wait
    /// before it may begin. `delay` is the newest lock delay that the holder
    /// knows of; else the one found stays. Without a record the token is made
    /// from the clock again, which is later than any that came before.
    #[must_use]
    pub fn acquired(
        found: Option<&Self>,
        holder: &str,
        since: String,
        now_micros: u64,
        delay: Option<Duration>,
    ) -> (Self, Duration) {
        let kept = found.map_or(0, |record| record.delay);
        let unclean = found.is_some_and(|record| record.state == RecordState::Held);
        let next = Self {
            token: found.map_or(now_micros, |record| record.token.saturating_add(1)),
            holder: holder.to_owned(),
            state: RecordState::Held,
            since,
            delay: delay.map_or(kept, millis),
        };
        // What its resource says now counts, also for the end of one before.
        let wait = if unclean { Duration::from_millis(next.delay) } else { Duration::ZERO };
        (next, wait)
    }

    /// The same acquisition, given back.
    #[must_use]
    pub fn released(self, since: String) -> Self {
        Self { state: RecordState::Released, since, ..self }
    }

    /// As it is sent.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(token: u64) -> SlotRecord {
        let found = SlotRecord::seed(token - 1, String::new(), Duration::from_secs(15));
        SlotRecord::acquired(Some(&found), "4fz", String::new(), 0, None).0
    }

    #[test]
    fn each_acquisition_has_a_greater_token_whatever_happened_before() {
        let (next, wait) = SlotRecord::acquired(Some(&held(7)), "x", String::new(), 3, None);
        assert_eq!((next.token, wait), (8, Duration::from_secs(15)));
        let released = held(7).released(String::new());
        let (next, wait) = SlotRecord::acquired(Some(&released), "x", String::new(), 3, None);
        assert_eq!((next.token, wait), (8, Duration::ZERO));
        let (next, wait) = SlotRecord::acquired(None, "x", String::new(), 99, None);
        assert_eq!((next.token, wait), (99, Duration::ZERO));
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
        let (old, new) = (held(7).to_json(), held(8).to_json());
        let newest = SlotRecord::newest([old.as_slice(), new.as_slice()]);
        assert_eq!(newest.map(|record| record.token), Some(8));
        let released = held(8).released(String::new()).to_json();
        let newest = SlotRecord::newest([new.as_slice(), released.as_slice()]);
        assert_eq!(newest.map(|record| record.state), Some(RecordState::Released));
        assert_eq!(SlotRecord::newest([b"?".as_slice()]), None);
    }
}
