//! Progress messages on stderr while waiting for a lock: its holders, updated in place on
//! a terminal, and as occasional lines elsewhere.

use std::convert::Infallible;
use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::naming::Unit;
use lockkeeper_plan::semaphore::{DEFAULT_OVERSHOOT, Holder};
use lockkeeper_semaphore::{AcquireError, Broker, BrokerError, BrokerOptions};
use tokio::sync::Notify;

use super::common::say;
use super::target::FoundLock;

/// Waiting for less than this time is not reported.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Interval of messages on a terminal, and elsewhere.
const ON_A_TERMINAL: Duration = Duration::from_secs(2);
const ELSEWHERE: Duration = Duration::from_secs(30);

/// Time after which an obstacle has passed if it was not reported again. Longer than the
/// pause between two attempts.
const PASSED: Duration = Duration::from_secs(15);

/// Maximum time to find a lock's holders after it was not acquired.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// Maximum number of holders in a message.
const MAX_NAMED: usize = 5;

/// Reports the holders that this process waits for.
pub(super) struct Waiting<'a> {
    found: &'a FoundLock,
    started: Instant,
    quiet: bool,
    said: AtomicBool,
    /// Why there is nothing to wait for at the moment, and when that was reported.
    obstacle: Mutex<Option<(String, Instant)>>,
    reported: Notify,
}

impl<'a> Waiting<'a> {
    /// Starts to measure the waiting time.
    pub fn new(found: &'a FoundLock, quiet: bool) -> Self {
        Self {
            found,
            started: Instant::now(),
            quiet,
            said: AtomicBool::new(false),
            obstacle: Mutex::default(),
            reported: Notify::new(),
        }
    }

    /// Takes note of an error that the acquisition survives. An outage is noticed by this
    /// report itself.
    pub fn survived(&self, error: &AcquireError) {
        let why = match error {
            AcquireError::NoSlots { .. } => "it was deleted, and must be created again".to_owned(),
            AcquireError::Broker(error @ BrokerError::QuotaExceeded { .. }) => {
                format!("{error}; trying again")
            }
            _ => return,
        };
        *self.obstacle.lock().unwrap_or_else(PoisonError::into_inner) = Some((why, Instant::now()));
        self.reported.notify_one();
    }

    fn obstacle(&self) -> Option<String> {
        let obstacle = self.obstacle.lock().unwrap_or_else(PoisonError::into_inner);
        obstacle.as_ref().filter(|(_, at)| at.elapsed() < PASSED).map(|(why, _)| why.clone())
    }

    /// Returns when an obstacle other than this one is reported.
    async fn other_obstacle(&self, known: Option<&str>) {
        while self.obstacle().as_deref().is_none_or(|why| Some(why) == known) {
            self.reported.notified().await;
        }
    }

    /// Reports while it is polled. Cancel safe: its text on a terminal is removed.
    pub async fn show(&self) -> Infallible {
        if self.quiet {
            return std::future::pending().await;
        }
        tokio::time::sleep(AT_ONCE).await;
        let line = Line(stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            let spinner = ProgressBar::new_spinner();
            spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        }));
        let what = self.found.wanted();
        let mut broker = None;
        loop {
            let obstacle = self.obstacle();
            let who = if let Some(why) = &obstacle {
                // Its connection may be the one that the acquisition needs.
                broker = None;
                format!(": {why}")
            } else {
                let new = || Broker::new(self.found.settings.clone(), BrokerOptions::default());
                who_holds(broker.get_or_insert_with(new), self.found).await
            };
            let waited = in_words(self.started.elapsed());
            let pause = if line.0.is_some() { ON_A_TERMINAL } else { ELSEWHERE };
            match &line.0 {
                Some(spinner) => {
                    spinner.set_message(format!("waiting for {what}, {waited}{who}"));
                }
                None => {
                    let is_first = !self.said.swap(true, Ordering::Relaxed);
                    let waited = if is_first { String::new() } else { format!(", {waited}") };
                    let _ = writeln!(stderr(), "lockkeeper: waiting for {what}{waited}{who}");
                }
            }
            let _ = tokio::time::timeout(pause, self.other_obstacle(obstacle.as_deref())).await;
        }
    }

    /// Reports the holders of the lock that was not acquired, if the broker names them at once and no
    /// message said it before.
    pub async fn was_in_vain(&self) {
        if self.quiet || self.said.load(Ordering::Relaxed) {
            return;
        }
        let broker = Broker::new(self.found.settings.clone(), BrokerOptions::default());
        let asked = tokio::time::timeout(AFTERWARDS, who_holds(&broker, self.found)).await;
        if let Ok(who) = asked
            && !who.is_empty()
        {
            say(format_args!("{}{who}", self.found.name));
        }
    }

    /// Reports the end of waiting, if its start was reported.
    pub fn ended(&self, slot: Option<u32>) {
        if self.said.load(Ordering::Relaxed) {
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
pub(super) async fn who_holds(broker: &Broker, found: &FoundLock) -> String {
    let lock = &found.name;
    let observed = async {
        let mark = broker.find_highest_slot(lock, DEFAULT_OVERSHOOT).await?;
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
