//! The slot record: the message of `F[i]`, which contains the last holder of slot `i` and
//! how it ended. It gives each acquisition of a slot a greater token (fencing), and makes
//! the next holder wait after an unclean end (lock delay). Pure logic. See
//! `client/records.rs` in the crate `semaphore` for reading and replacing it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The content of a slot record. As JSON: `{"token": 1760000000000001, "holder": "4fz…",
/// "state": "held", "since": "2026-11-21T10:00:00Z", "delay": 15000}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// The fencing token of the last acquisition, greater than any earlier one of this
    /// slot. The first is derived from the microseconds since 1970, so that a semaphore
    /// that is deleted and created again never repeats one.
    pub token: u64,
    /// The id of the last holder. Empty in a seed, which an administrator wrote.
    #[serde(default)]
    pub holder: String,
    /// The state of the last holder.
    pub state: RecordState,
    /// Start of that state, RFC 3339. For display only: no decision depends on it,
    /// because the clocks of two clients may differ.
    #[serde(default)]
    pub since: String,
    /// How long the next holder rests after an unclean end, in milliseconds.
    #[serde(default)]
    pub delay: u64,
    /// The elapsed part of an unfinished rest, in milliseconds, as measured by the
    /// clients that rested. Only with `held`: the last client ended during its rest, so
    /// the next one continues from here. A client that doesn't support this field finds
    /// `held`, and rests for the whole delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rested: Option<u64>,
}

/// The state of a slot's last holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordState {
    /// It acquired the slot. If a client finds this after acquiring the slot, the last
    /// holder ended without releasing it.
    Held,
    /// It released the slot, or there was no holder yet.
    Released,
}

impl SlotRecord {
    /// Creates the first record of a slot, as written by an administrator. `Held` if the
    /// slot has a holder that wrote no record, or if the record was lost. The next holder
    /// must then rest.
    #[must_use]
    pub fn seed(now_micros: u64, since: String, delay: Duration, state: RecordState) -> Self {
        let (holder, rested) = (String::new(), None);
        Self { token: now_micros, holder, state, since, delay: millis(delay), rested }
    }

    /// Merges the messages found. `None` if none can be parsed.
    ///
    /// There is more than one message after a crash between publishing a new record and
    /// acknowledging the old one. There is also more than one if an administrator seeded
    /// a record while a client had the old one unacknowledged. The greatest token counts,
    /// whoever wrote it. All other fields are those of the last holder, because the
    /// author of a seed did not see them. Without a holder's record, the result is `held`
    /// if any seed is.
    #[must_use]
    pub fn merge<'a>(bodies: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let found: Vec<Self> =
            bodies.into_iter().filter_map(|body| serde_json::from_slice(body).ok()).collect();
        let token = found.iter().map(|record| record.token).max()?;
        let by_holder = |record: &&Self| !record.holder.is_empty();
        let newest = found.iter().filter(by_holder).max_by_key(|record| record.progress());
        let seed = || found.iter().max_by_key(|seed| (seed.state == RecordState::Held, seed.token));
        newest.or_else(seed).map(|record| Self { token, ..record.clone() })
    }

    /// Returns the order in which a slot's holders write. Of two records of one rest, the
    /// shorter one counts, because the longer may overlap with another client's.
    fn progress(&self) -> (u64, u8, u64) {
        let (step, rested) = match (self.state, self.rested) {
            (RecordState::Held, Some(rested)) => (0, u64::MAX - rested),
            (RecordState::Held, None) => (1, 0),
            (RecordState::Released, _) => (2, 0),
        };
        (self.token, step, rested)
    }

    /// Returns the record of the next acquisition, and how long its holder must rest
    /// first. `delay` is the lock delay of the lock's resource, if the holder knows it.
    /// Otherwise the delay in the found record stays.
    ///
    /// Without a record, the last end is unknown and counts as unclean. The token is then
    /// derived from the clock again, which is later than any earlier token.
    #[must_use]
    pub fn acquired(
        found: Option<&Self>,
        holder: &str,
        since: String,
        now_micros: u64,
        delay: Option<Duration>,
    ) -> (Self, Duration) {
        let kept = found.map_or(0, |record| record.delay);
        let delay = delay.map_or(kept, millis);
        let (unclean, rested) = found.map_or((true, 0), |record| {
            (record.state == RecordState::Held, record.rested.unwrap_or(0))
        });
        // The resource's current value applies, also to an earlier unclean end.
        let rest = if unclean { delay.saturating_sub(rested) } else { 0 };
        let next = Self {
            token: found.map_or(now_micros, |record| record.token.saturating_add(1)),
            holder: holder.to_owned(),
            state: RecordState::Held,
            since,
            delay,
            rested: (rest > 0).then_some(rested),
        };
        (next, Duration::from_millis(rest))
    }

    /// Returns the elapsed part of the rest. Zero if the slot doesn't rest.
    #[must_use]
    pub fn rested(&self) -> Duration {
        Duration::from_millis(self.rested.unwrap_or(0))
    }

    /// Returns the record of the same acquisition, still resting, with this elapsed time.
    /// Rounded down.
    #[must_use]
    pub fn resting(self, rested: Duration) -> Self {
        Self { rested: Some(millis(rested)), ..self }
    }

    /// Returns the record of the same acquisition after its rest. The slot is used from
    /// here on.
    #[must_use]
    pub fn begun(self, since: String) -> Self {
        Self { since, rested: None, ..self }
    }

    /// Returns the record of the same acquisition after its release. A slot that still
    /// rests was not released cleanly: the next holder continues the rest.
    #[must_use]
    pub fn given_back(self, since: String) -> Self {
        match self.rested {
            Some(_) => self,
            None => Self { state: RecordState::Released, since, ..self },
        }
    }

    /// Returns the record to write in place of the one found: this one, with a token that
    /// is not smaller, because an administrator may have seeded one in the meantime. The
    /// record of a later holder stays: this holder was superseded, for example in a
    /// partition of the broker, and the later one has not ended.
    #[must_use]
    pub fn above(self, found: Option<&Self>) -> Self {
        let Some(found) = found else { return self };
        let is_anothers = !found.holder.is_empty() && found.holder != self.holder;
        if is_anothers && found.token > self.token {
            return found.clone();
        }
        Self { token: found.token.max(self.token), ..self }
    }

    /// Returns the record in wire format.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
