//! What happens to the command of `exec` when its lock is lost. `exec` and its guardian decide
//! when. See `processes` for how a command is ended.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lockkeeper_net::clock::Moment;
use nix::sys::signal::Signal;

use crate::cli::processes::{Descendants, Ending};

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
    pub fn in_words(self) -> String {
        match self {
            Self::Terminate => "stopping the command".to_owned(),
            Self::Kill => "killing the command".to_owned(),
            Self::Signal(signal) => format!("sending {signal} to the command"),
            Self::Warn => "the command runs on without it".to_owned(),
        }
    }

    /// Starts to do it. Returns [`None`] if no more action is needed. Otherwise the remaining
    /// processes must be killed after `kill_after`, and no later than `latest`.
    pub fn begin(
        self,
        processes: &Descendants,
        kill_after: Duration,
        latest: Moment,
    ) -> Option<Ending> {
        match self {
            Self::Warn => None,
            Self::Signal(signal) => {
                processes.signal(signal);
                None
            }
            Self::Kill => Some(Ending::killing_at(Moment::now())),
            Self::Terminate => {
                processes.pass_on(Signal::SIGTERM);
                Some(Ending::killing_at((Moment::now() + kill_after).min(latest)))
            }
        }
    }
}

/// The message about processes that cannot be ended.
pub(super) fn survivors(processes: &Descendants) -> String {
    format!(
        "the command could not be ended; these processes run on without the lock: {}. End them, \
         and see whether exec has the permission to signal them",
        processes.names()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
