//! The process group of a command: sending signals, finding remaining processes, and
//! ending the group in time. `exec` and its guardian decide when.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgrp};

use crate::clock::Moment;

/// Interval of checks whether an ending group has ended.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Time limit for killed processes to disappear. Only the kernel can delay them.
const DYING: Duration = Duration::from_secs(5);

/// A process group: the guardian, which is its leader, the command, and all processes
/// that the command started and that did not leave the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group(Pid);

impl Group {
    /// Returns the group whose leader is the process `pid`.
    pub fn led_by(pid: i32) -> Self {
        Self(Pid::from_raw(pid))
    }

    /// Returns the group of this process.
    pub fn own() -> Self {
        Self(getpgrp())
    }

    pub fn id(self) -> Pid {
        self.0
    }

    /// Signals every process of the group. An error means that there is none, or none
    /// that may be signalled. Neither requires action.
    pub fn signal(self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    /// Returns whether a process other than the group's leader is alive in it. Returns
    /// true without `/proc`, where this is unknown.
    pub fn has_followers(self) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return true };
        processes
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|&pid| pid != self.0.as_raw())
            .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
            .any(|stat| is_alive_in(self.0.as_raw(), &stat))
    }
}

/// Returns whether `/proc/<pid>/stat` is that of a living process of the group. A zombie,
/// which its parent has not reaped yet, does not count.
fn is_alive_in(group: i32, stat: &str) -> bool {
    // The program's name is in parentheses and may contain any of these characters.
    let Some((_, after_name)) = stat.rsplit_once(')') else { return false };
    let mut fields = after_name.split_ascii_whitespace();
    let alive = fields.next().is_some_and(|state| !matches!(state, "Z" | "X"));
    alive && fields.nth(1).and_then(|id| id.parse().ok()) == Some(group)
}

/// What happens to the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnLost {
    /// TERM, then KILL for the remaining processes after `kill_after`.
    Terminate,
    /// KILL immediately.
    Kill,
    /// This signal only.
    Signal(Signal),
    /// A message only.
    Warn,
}

impl FromStr for OnLost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "terminate" => Ok(Self::Terminate),
            "kill" => Ok(Self::Kill),
            "warn" => Ok(Self::Warn),
            _ => text
                .strip_prefix("signal=")
                .and_then(|name| {
                    let name = name.to_uppercase();
                    Signal::from_str(&format!("SIG{}", name.trim_start_matches("SIG"))).ok()
                })
                .map(Self::Signal)
                .ok_or_else(|| "expected terminate, kill, warn, or signal=USR1".to_owned()),
        }
    }
}

impl fmt::Display for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Terminate => f.write_str("terminate"),
            Self::Kill => f.write_str("kill"),
            Self::Signal(signal) => write!(f, "signal={signal}"),
            Self::Warn => f.write_str("warn"),
        }
    }
}

impl OnLost {
    /// Describes the effect on the command.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Terminate => "is ended",
            Self::Kill => "is killed",
            Self::Signal(_) => "gets the signal it is to get",
            Self::Warn => "runs on without it",
        }
    }
}

/// A process group that is being ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    group: Group,
    kill_at: Moment,
}

impl Ending {
    /// Starts to end the group as given by `how`. Returns [`None`] if no more action is
    /// needed. Otherwise the remaining processes must be killed after `kill_after`, and
    /// no later than `latest`.
    pub fn begin(group: Group, how: OnLost, kill_after: Duration, latest: Moment) -> Option<Self> {
        let kill_at = match how {
            OnLost::Warn => return None,
            OnLost::Signal(signal) => {
                group.signal(signal);
                return None;
            }
            OnLost::Kill => Moment::now(),
            OnLost::Terminate => {
                group.signal(Signal::SIGTERM);
                // A stopped process reacts to the signal only when continued.
                group.signal(Signal::SIGCONT);
                (Moment::now() + kill_after).min(latest)
            }
        };
        Some(Self { group, kill_at })
    }

    /// Kills the group, including its leader, when it is due. Cancel safe.
    pub async fn kill_in_time(self) {
        self.kill_at.reached().await;
        self.group.signal(Signal::SIGKILL);
    }

    /// Like `kill_in_time`, but kills as soon as only the leader is left. Cancel safe.
    pub async fn kill(self) {
        while !self.kill_at.left().is_zero() && self.group.has_followers() {
            tokio::time::sleep(LOOK.min(self.kill_at.left())).await;
        }
        self.group.signal(Signal::SIGKILL);
    }

    /// Call this after the leader has ended: waits for the other processes, and kills
    /// them when it is due. Returns `false` if one is still alive seconds after SIGKILL.
    /// Cancel safe.
    pub async fn finish(self) -> bool {
        if !self.group.has_followers() {
            return true;
        }
        self.kill().await;
        let killed = Moment::now();
        while self.group.has_followers() {
            if killed.elapsed() > DYING {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_while_it_runs_whatever_its_name_is() {
        assert!(is_alive_in(7, "12 (sh) S 1 7 7 0"));
        assert!(is_alive_in(7, "12 (a) Z 1 8) R 1 7 7 0"));
        assert!(!is_alive_in(7, "12 (sh) Z 1 7 7 0"));
        assert!(!is_alive_in(7, "12 (sh) S 7 12 7 0"));
        assert!(!is_alive_in(7, ""));
    }

    #[test]
    fn the_on_lost_option_reaches_the_guardian_unchanged() {
        for text in ["terminate", "kill", "warn", "signal=USR1", "signal=sighup"] {
            let read: OnLost = text.parse().unwrap();
            assert_eq!(read.to_string().parse(), Ok(read));
        }
        for wrong in ["", "signal=", "signal=NONE", "stop"] {
            assert!(wrong.parse::<OnLost>().is_err(), "{wrong}");
        }
    }
}
