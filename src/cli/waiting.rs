//! Progress messages on stderr while waiting for a lock: its holders, updated in place on
//! a terminal, and as occasional lines elsewhere.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::target::FoundLock;
use crate::plan::ErrorClass;
use crate::plan::naming::Unit;
use crate::plan::semaphore::{DEFAULT_OVERSHOOT, Holder};
use crate::semaphore::{Broker, BrokerOptions};

/// Waiting for less than this time is not reported.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Interval of messages on a terminal, and elsewhere.
const ON_A_TERMINAL: Duration = Duration::from_secs(2);
const ELSEWHERE: Duration = Duration::from_secs(30);

/// Maximum number of holders in a message.
const MAX_NAMED: usize = 5;

/// Reports the holders that this process waits for.
pub(super) struct Waiting<'a> {
    found: &'a FoundLock,
    started: Instant,
    quiet: bool,
    said: Cell<bool>,
}

impl<'a> Waiting<'a> {
    /// Starts to measure the waiting time.
    pub fn new(found: &'a FoundLock, quiet: bool) -> Self {
        Self { found, started: Instant::now(), quiet, said: Cell::new(false) }
    }

    /// Reports while it is polled. Cancel safe: its text on a terminal is removed.
    pub async fn show(&self) -> Infallible {
        if self.quiet {
            return std::future::pending().await;
        }
        tokio::time::sleep(AT_ONCE).await;
        let broker = Broker::new(self.found.settings.clone(), BrokerOptions::default());
        let line = Line(stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            let spinner = ProgressBar::new_spinner();
            spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        }));
        let what = self.found.wanted();
        loop {
            let who = who_holds(&broker, self.found).await;
            let waited = in_words(self.started.elapsed());
            match &line.0 {
                Some(spinner) => {
                    spinner.set_message(format!("waiting for {what}, {waited}{who}"));
                    tokio::time::sleep(ON_A_TERMINAL).await;
                }
                None => {
                    let waited =
                        if self.said.get() { format!(", {waited}") } else { String::new() };
                    self.said.set(true);
                    let _ = writeln!(stderr(), "lockkeeper: waiting for {what}{waited}{who}");
                    tokio::time::sleep(ELSEWHERE).await;
                }
            }
        }
    }

    /// Reports the end of waiting, if its start was reported.
    pub fn ended(&self, slot: Option<u32>) {
        if self.said.get() {
            let (what, waited) = (self.found.what(slot), in_words(self.started.elapsed()));
            let _ = writeln!(stderr(), "lockkeeper: got {what} after {waited}");
        }
    }
}

/// A spinner that is removed when dropped.
struct Line(Option<ProgressBar>);

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(spinner) = &self.0 {
            spinner.finish_and_clear();
        }
    }
}

/// Formats the holders as far as known: `: 3 of 3 held: 1 by …`.
async fn who_holds(broker: &Broker, found: &FoundLock) -> String {
    let lock = &found.name;
    let observed = async {
        let mark = broker.find_mark(lock, DEFAULT_OVERSHOOT).await?;
        broker.observe(lock, mark.unwrap_or(0), mark.unwrap_or(0)).await
    };
    let seen = match observed.await {
        Ok(seen) => seen,
        Err(error) if error.class() == ErrorClass::Transient => {
            return format!(": no answer from the broker ({}), connecting again", error.reason());
        }
        Err(_) => return String::new(),
    };
    let slots = seen.total();
    if slots == 0 {
        return format!(": it has no {}", found.units());
    }
    let held = seen.counts(slots).held;
    let mut known = Vec::new();
    if broker.has_management() {
        let holders = broker.holders(lock, &seen, slots, MAX_NAMED).await;
        known.extend(holders.list.iter().filter_map(in_short));
    }
    let who = known.join(", ");
    match (lock.unit(), who.is_empty()) {
        (Unit::Mutex, _) if held == 0 => ": it is free".to_owned(),
        (Unit::Mutex, true) => ": it is held".to_owned(),
        (Unit::Mutex, false) => format!(": it is held by {who}"),
        (_, true) => format!(": {held} of {slots} held"),
        (_, false) => format!(": {held} of {slots} held, {who}"),
    }
}

/// Describes a holder, if it provides any information about itself.
fn in_short(holder: &Holder) -> Option<String> {
    let who = holder.identity.as_ref().or(holder.connection.as_ref())?;
    let mut text = holder.slot.map_or_else(String::new, |slot| format!("{slot} by "));
    text += who;
    let since = holder.since.as_ref().map(|since| format!(" since {since}"));
    let reason = holder.reason.as_ref().map(|reason| format!(" ({reason})"));
    text.extend([since, reason].into_iter().flatten());
    Some(text)
}

/// Formats a waiting time in whole seconds.
fn in_words(waited: Duration) -> String {
    let seconds = waited.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, _) => format!("{hours}h{minutes}m"),
    }
}
