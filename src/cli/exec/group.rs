//! The process group that a command runs in: signals to it, who is left of it,
//! and how it is ended in time. When that is due is for `exec` and its guardian
//! to say.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgrp};

use crate::semaphore::Moment;

/// How often it is looked whether a group that is ending has ended.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How long a killed process may take to be gone. Only the kernel can delay it.
const DYING: Duration = Duration::from_secs(5);

/// A process group: the guardian, who leads it, the command, and whatever that
/// started and didn't leave the group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group(Pid);

impl Group {
    /// The group that the process `pid` leads.
    pub fn led_by(pid: i32) -> Self {
        Self(Pid::from_raw(pid))
    }

    /// The caller's own.
    pub fn own() -> Self {
        Self(getpgrp())
    }

    pub fn id(self) -> Pid {
        self.0
    }

    /// Signals every process of the group. An error means that there is none, or
    /// none that we may signal: nothing to be done in either case.
    pub fn signal(self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    /// Whether a process other than the group's leader is alive in it. Without
    /// `/proc` nobody knows, and then it is so.
    pub fn has_followers(self) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return true };
        processes
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|&pid| pid != self.0.as_raw())
            .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
            .any(|stat| is_alive_in(self.0.as_raw(), &stat))
    }
}

/// Whether `/proc/<pid>/stat` is that of a living process of the group. One that
/// has died and that its parent didn't ask about yet does nothing any more.
fn is_alive_in(group: i32, stat: &str) -> bool {
    // The program's name stands in parentheses and may contain any of these.
    let Some((_, after_name)) = stat.rsplit_once(')') else { return false };
    let mut fields = after_name.split_ascii_whitespace();
    let alive = fields.next().is_some_and(|state| !matches!(state, "Z" | "X"));
    alive && fields.nth(1).and_then(|id| id.parse().ok()) == Some(group)
}

/// What happens to the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnLost {
    /// TERM, and KILL for what is left after the time allowed.
    Terminate,
    /// KILL at once.
    Kill,
    /// This signal, and nothing more.
    Signal(Signal),
    /// Only a message.
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
    /// What becomes of the command.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Terminate => "is ended",
            Self::Kill => "is killed",
            Self::Signal(_) => "gets the signal it is to get",
            Self::Warn => "runs on without it",
        }
    }
}

/// A group that is being ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    group: Group,
    kill_at: Moment,
}

impl Ending {
    /// Does what `how` says. [`None`] if that is all there is to do; otherwise
    /// what is left of the group is to be killed `kill_after` from now, and in
    /// any case at `latest`.
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
                // A stopped process would die of it only when continued.
                group.signal(Signal::SIGCONT);
                (Moment::now() + kill_after).min(latest)
            }
        };
        Some(Self { group, kill_at })
    }

    /// Kills the group, its leader included, when it is time. Cancel safe.
    pub async fn kill_in_time(self) {
        self.kill_at.reached().await;
        self.group.signal(Signal::SIGKILL);
    }

    /// The same, but at once when nobody except the leader is left. Cancel safe.
    pub async fn kill(self) {
        while !self.kill_at.left().is_zero() && self.group.has_followers() {
            tokio::time::sleep(LOOK.min(self.kill_at.left())).await;
        }
        self.group.signal(Signal::SIGKILL);
    }

    /// After the leader has ended: waits for the others, and kills them when it is
    /// time. `false` if one is still alive seconds after KILL. Cancel safe.
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
    fn a_process_counts_while_it_lives_whatever_it_calls_itself() {
        assert!(is_alive_in(7, "12 (sh) S 1 7 7 0"));
        assert!(is_alive_in(7, "12 (a) Z 1 8) R 1 7 7 0"));
        assert!(!is_alive_in(7, "12 (sh) Z 1 7 7 0"));
        assert!(!is_alive_in(7, "12 (sh) S 7 12 7 0"));
        assert!(!is_alive_in(7, ""));
    }

    #[test]
    fn what_to_do_on_a_loss_survives_the_way_to_the_guardian() {
        for text in ["terminate", "kill", "warn", "signal=USR1", "signal=sighup"] {
            let read: OnLost = text.parse().unwrap();
            assert_eq!(read.to_string().parse(), Ok(read));
        }
        for wrong in ["", "signal=", "signal=NONE", "stop"] {
            assert!(wrong.parse::<OnLost>().is_err(), "{wrong}");
        }
    }
}
