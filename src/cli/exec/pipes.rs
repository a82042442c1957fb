//! The two pipes between `exec` and its guardian: orders in one direction, reports in the
//! other. Each message is a line. See `running` and `guardian` for how they are handled, and
//! `starter` for the pipe from the guardian to the command.

use std::fmt::{self, Display};
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::str::FromStr;
use std::time::Duration;

use lockkeeper_net::clock::Moment;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe::{self, Receiver};

use super::environment::Environment;

/// Message from `exec` to the guardian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The lock was acquired. The next proof that leaves enough time starts the command.
    Start(Launch),
    /// The lock is proven until this moment.
    Valid(Moment),
    /// `exec` has begun to end the command itself.
    Ending,
}

/// What the guardian must know of the lock before it starts the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Launch {
    /// Time between TERM and KILL.
    pub kill_after: Duration,
    pub environment: Environment,
}

/// Message from the guardian to `exec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The guardian handles signals, and all processes that the command needs were started.
    Ready,
    /// The command was started and receives signals.
    Runs,
    /// The command was stopped because it is not in the terminal's foreground.
    WantsTerminal,
}

impl Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(launch) => {
                let launch = serde_json::to_string(launch).map_err(|_| fmt::Error)?;
                write!(f, "start {launch}")
            }
            Self::Valid(until) => write!(f, "valid {}", until.as_nanos()),
            Self::Ending => f.write_str("ending"),
        }
    }
}

impl FromStr for Order {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        match line.split_once(' ') {
            Some(("start", launch)) => serde_json::from_str(launch).map(Self::Start).map_err(drop),
            Some(("valid", nanos)) => {
                Ok(Self::Valid(Moment::from_nanos(nanos.parse().map_err(drop)?)))
            }
            _ => (line == "ending").then_some(Self::Ending).ok_or(()),
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::Runs => "runs",
            Self::WantsTerminal => "wants terminal",
        })
    }
}

impl FromStr for Report {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let all = [Self::Ready, Self::Runs, Self::WantsTerminal];
        all.into_iter().find(|report| report.to_string() == line).ok_or(())
    }
}

/// Receiving end of a pipe of messages.
pub(super) struct Incoming<T> {
    lines: Lines<BufReader<Receiver>>,
    is_gone: bool,
    messages: PhantomData<T>,
}

impl<T: FromStr> Incoming<T> {
    fn new(pipe: Receiver) -> Self {
        Self { lines: BufReader::new(pipe).lines(), is_gone: false, messages: PhantomData }
    }

    /// Creates a pipe. Returns its other end for a process that is about to be started.
    pub fn with_outlet() -> io::Result<(Self, PipeWriter)> {
        let (ours, theirs) = io::pipe()?;
        inherited(&theirs)?;
        Ok((Self::new(Receiver::from_owned_fd(OwnedFd::from(ours))?), theirs))
    }

    /// Opens the inherited pipe with this descriptor.
    pub fn open(number: i32) -> io::Result<Self> {
        let pipe = reopened(number, |path| pipe::OpenOptions::new().open_receiver(path))?;
        nix::unistd::close(number)?;
        Ok(Self::new(pipe))
    }

    /// Returns whether the process at the other end has ended.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Returns the next message, or `None` once the process at the other end has ended.
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<T> {
        while !self.is_gone {
            match self.lines.next_line().await {
                Ok(Some(line)) => {
                    if let Ok(message) = line.parse() {
                        return Some(message);
                    }
                }
                Ok(None) | Err(_) => {
                    self.is_gone = true;
                    return None;
                }
            }
        }
        std::future::pending().await
    }
}

/// Sending end of a pipe of messages.
pub(super) struct Outgoing<T> {
    pipe: File,
    messages: PhantomData<T>,
}

impl<T: Display> Outgoing<T> {
    /// Creates a pipe. Returns its other end for a process that is about to be started.
    pub fn with_inlet() -> io::Result<(Self, PipeReader)> {
        let (theirs, ours) = io::pipe()?;
        inherited(&theirs)?;
        // A process that does not read must not block this one.
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok((Self { pipe: File::from(OwnedFd::from(ours)), messages: PhantomData }, theirs))
    }

    /// Opens the inherited pipe with this descriptor.
    pub fn open(number: i32) -> io::Result<Self> {
        let flags = OFlag::O_NONBLOCK.bits();
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(flags);
        let pipe = reopened(number, |path| options.open(path))?;
        nix::unistd::close(number)?;
        Ok(Self { pipe, messages: PhantomData })
    }

    /// Writes a message. Failures are ignored: the end of the other process is noticed
    /// elsewhere, and a process that does not read acts on its own.
    pub fn tell(&mut self, message: &T) {
        // A line this short is written atomically.
        let _ = self.pipe.write_all(format!("{message}\n").as_bytes());
    }
}

/// Opens the inherited pipe with this descriptor, to read it without a runtime.
pub(super) fn open_blocking(number: i32) -> io::Result<File> {
    let pipe = reopened(number, |path| File::open(path))?;
    nix::unistd::close(number)?;
    Ok(pipe)
}

/// Makes the next started process inherit this descriptor, in addition to the standard
/// ones.
pub(super) fn inherited(end: impl AsFd) -> io::Result<()> {
    fcntl(end, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(())
}

/// Reopens an inherited descriptor by its path. Closing the original then keeps the command
/// from inheriting it.
fn reopened<T>(number: i32, open: impl FnOnce(&str) -> io::Result<T>) -> io::Result<T> {
    // Not /dev/fd: a chroot may have no /dev, but has /proc, by which the guardian was started.
    open(&format!("/proc/self/fd/{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way_through_the_pipe() {
        let mut environment = Environment::default();
        environment.set("LOCK_NAME", Some("a \"quoted\"\nname".to_owned()));
        environment.set("LOCK_SLOT", None);
        let kill_after = Duration::from_millis(2500);
        let start = Order::Start(Launch { kill_after, environment });
        for order in [start, Order::Valid(Moment::from_nanos(17)), Order::Ending] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for report in [Report::Ready, Report::Runs, Report::WantsTerminal] {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        for wrong in ["", "valid", "valid x", "start", "start {}", "end"] {
            assert_eq!(wrong.parse::<Order>(), Err(()), "{wrong}");
            assert_eq!(wrong.parse::<Report>(), Err(()), "{wrong}");
        }
    }
}
