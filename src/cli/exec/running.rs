//! While the command runs: telling the guardian that the lock is proven, passing
//! signals on, and ending the command when the lock is lost or drained.

use std::io::{self, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::Signal;
use tokio::process::{Child, Command};
use tracing::{Instrument, Span, debug_span};

use super::group::{Ending, Group, OnLost};
use super::guardian::{ENDING, MARGIN, VALID, code, until};
use super::terminal::Lent;
use super::{Arguments, OnDrain, say};
use crate::cli::Failure;
use crate::cli::hold::held;
use crate::cli::signals::Signals;
use crate::cli::target::Found;
use crate::cli::telemetry::traceparent;
use crate::semaphore::{LostReason, Moment, Permit};

/// How long a lost permit may take to say why.
const REASON: Duration = Duration::from_secs(1);

/// Runs the command under the permit, which is given back at the end, and
/// returns the command's exit code.
pub(super) async fn run(
    arguments: &Arguments,
    found: &Found,
    permit: Permit,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let what = found.what(permit.slot());
    // More would mean to end the command although the next proof is not overdue.
    let kill_after = arguments.fate.kill_after.min(permit.valid_until().left() / 3);
    let holding = held(found, &permit);
    let guardian =
        Guardian::start(arguments, found, &permit, kill_after, &holding).map_err(|error| {
            Failure::new(Failure::UNAVAILABLE, format!("the command can't be guarded: {error}"))
        })?;
    let group = guardian.group;
    let mut running = Running {
        terminal: Lent::to(group),
        arguments,
        found,
        permit: &permit,
        kill_after,
        guardian,
        ending: None,
        lost: None,
    };
    let status = running.until_it_ends(signals).await;
    let Running { mut ending, lost, terminal, .. } = running;
    drop(terminal);
    let unguarded = ending.is_none() && status.as_ref().is_ok_and(|s| s.signal().is_some());
    if unguarded || status.is_err() {
        ending = Ending::begin(group, OnLost::Kill, Duration::ZERO, Moment::now());
    }
    match ending {
        Some(ending) if !ending.finish().await => {
            say("a process of the command survives KILL; the lock goes all the same".into()).await;
        }
        None if group.has_followers() => {
            say("the command left processes behind: they run on without the lock".into()).await;
        }
        _ => {}
    }
    let lost = match lost {
        None if !permit.is_valid() => Some(reason(&permit).await),
        lost => lost,
    };
    if let Some(reason) = lost {
        holding.record("lock.lost", reason.name());
        let message = format!("{what} was lost: {reason} ({})", reason.name());
        return Err(Failure::new(Failure::LOST, message));
    }
    // What is lost from here on guards nothing any more.
    drop(holding);
    let _ = permit.release().instrument(debug_span!("lock.release")).await;
    if unguarded {
        let message = format!("the command was killed with its guardian; {what} was released");
        return Err(Failure::new(Failure::LOST, message));
    }
    status.map(code).map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))
}

/// The reason of a loss that is certain.
async fn reason(permit: &Permit) -> LostReason {
    let reason = tokio::time::timeout(REASON, permit.lost()).await;
    reason.unwrap_or(LostReason::HeartbeatMissed)
}

struct Running<'a> {
    terminal: Option<Lent>,
    arguments: &'a Arguments,
    found: &'a Found,
    permit: &'a Permit,
    kill_after: Duration,
    guardian: Guardian,
    /// The command is being ended.
    ending: Option<Ending>,
    lost: Option<LostReason>,
}

impl Running<'_> {
    /// Returns when the guardian has ended, which it does with the command.
    async fn until_it_ends(&mut self, signals: &mut Signals) -> io::Result<ExitStatus> {
        let permit = self.permit;
        let mut draining = false;
        let mut killed = false;
        // The first one starts the command.
        let mut told = permit.valid_until();
        self.guardian.tell_valid(told);
        loop {
            let act_at = permit.valid_until() - MARGIN - self.kill_after;
            let watched = self.lost.is_none();
            let ending = self.ending;
            let kill = async {
                match ending {
                    Some(ending) => ending.kill_in_time().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                status = self.guardian.process.wait() => return status,
                signal = signals.next() => self.guardian.group.signal(signal),
                () = permit.proved_after(told), if watched => {
                    told = permit.valid_until();
                    self.guardian.tell_valid(told);
                }
                reason = permit.lost(), if watched => self.lose(reason),
                () = until(act_at), if watched => {
                    self.look_at_terminal();
                    if act_at.left().is_zero() {
                        self.lose(LostReason::HeartbeatMissed);
                    }
                }
                () = permit.draining(), if !draining => {
                    draining = true;
                    self.drain();
                }
                () = kill, if !killed => killed = true,
            }
        }
    }

    /// A job that is brought to the foreground is not told of it; the command may
    /// be stopped because it wanted to read.
    fn look_at_terminal(&mut self) {
        if self.terminal.is_none() {
            self.terminal = Lent::to(self.guardian.group);
            if self.terminal.is_some() {
                self.guardian.group.signal(Signal::SIGCONT);
            }
        }
    }

    /// What was guarded isn't any more, or won't be when it is too late to act.
    fn lose(&mut self, reason: LostReason) {
        let latest = self.permit.valid_until() - MARGIN;
        let how = self.arguments.fate.on_lost;
        self.end(how, latest);
        let what = self.found.what(self.permit.slot());
        // Nothing here waits for whoever reads it.
        let text = format!("{what} was lost: {reason}; the command {}", how.in_words());
        tokio::spawn(say(text));
        self.lost = Some(reason);
    }

    fn drain(&mut self) {
        let stop = self.arguments.fate.on_drain == OnDrain::Stop && self.lost.is_none();
        if stop {
            // Should the lock be lost meanwhile, the guardian kills in time.
            self.end(OnLost::Terminate, Moment::now() + self.kill_after);
        }
        let then = if stop { "the command is ended" } else { "the command may finish" };
        tokio::spawn(say(format!("{}; {then}", self.found.draining(self.permit.slot()))));
    }

    fn end(&mut self, how: OnLost, latest: Moment) {
        if self.ending.is_none() {
            self.guardian.tell(ENDING);
            self.ending = Ending::begin(self.guardian.group, how, self.kill_after, latest);
        }
    }
}

/// The guardian's process, and the way to talk to it.
struct Guardian {
    process: Child,
    group: Group,
    control: PipeWriter,
}

impl Guardian {
    /// Starts it, in a process group of its own. The command waits for the first
    /// proof.
    fn start(
        arguments: &Arguments,
        found: &Found,
        permit: &Permit,
        kill_after: Duration,
        holding: &Span,
    ) -> io::Result<Self> {
        let (theirs, control) = io::pipe()?;
        // Nobody who doesn't read may stop us.
        fcntl(&control, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // The one thing that it inherits beyond what every process does.
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("lockkeeper")
            .arg("guardian")
            .arg(format!("--control={}", theirs.as_raw_fd()))
            .arg(format!("--kill-after={}ms", kill_after.as_millis()))
            .arg(format!("--on-lost={}", arguments.fate.on_lost))
            .arg("--")
            .args(&arguments.command)
            .env("LOCK_NAME", found.name.as_str())
            .env("LOCK_HOLDER_ID", permit.id())
            .process_group(0);
        let numbers = [
            ("LOCK_SLOT", permit.slot().map(u64::from)),
            ("LOCK_TOKEN_ID", permit.token_id()),
            ("LOCK_TOKEN", permit.fence()),
        ];
        for (variable, number) in numbers {
            match number {
                Some(number) => command.env(variable, number.to_string()),
                // One of a lock around ours would be taken for ours.
                None => command.env_remove(variable),
            };
        }
        if let Some(parent) = traceparent(holding) {
            command.env("TRACEPARENT", parent);
        }
        let process = command.spawn()?;
        let pid = process.id().and_then(|pid| i32::try_from(pid).ok());
        let group = Group::led_by(pid.ok_or(io::ErrorKind::NotFound)?);
        Ok(Self { process, group, control })
    }

    fn tell_valid(&mut self, until: Moment) {
        self.tell(&format!("{VALID} {}", until.as_nanos()));
    }

    /// If it has ended, that is heard of elsewhere; if it doesn't read, it will
    /// act by itself.
    fn tell(&mut self, line: &str) {
        // So short a line is written whole or not at all.
        let _ = self.control.write_all(format!("{line}\n").as_bytes());
    }
}
