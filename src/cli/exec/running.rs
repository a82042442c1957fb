//! Supervises the running command: sends proofs of the lock to the guardian, forwards
//! signals, lends the terminal, and ends the command when the lock is lost or drained.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::process::{Child, Command};
use tracing::{Instrument, Span, debug_span};

use super::asking::{Questions, SOCKET};
use super::fate::{Fate, OnDrain, say};
use super::group::{Ending, Group, OnLost};
use super::guardian::{MARGIN, code, until};
use super::pipes::{Incoming, Order, Outgoing, Report};
use super::terminal::{Foreground, Terminal};
use crate::cli::failure::Failure;
use crate::cli::hold::held;
use crate::cli::signals::Signals;
use crate::cli::target::FoundLock;
use crate::cli::telemetry::traceparent;
use crate::semaphore::{LostReason, Moment, Permit};

/// Time limit for learning the reason of a lost permit.
const REASON: Duration = Duration::from_secs(1);

/// Polling interval of the terminal. A job is not notified when a shell brings it to the
/// foreground.
const LOOK_AT_TERMINAL: Duration = Duration::from_millis(250);

/// Runs the command under the permit, and releases the permit at the end. Returns the
/// command's exit code.
pub(super) async fn run(
    command: &[OsString],
    fate: &Fate,
    found: &FoundLock,
    permit: Permit,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let what = found.what(permit.slot());
    // A longer time would end the command although the next proof is not overdue.
    let kill_after = fate.kill_after.min(permit.valid_until().left() / 3);
    let holding = held(found, &permit);
    let questions = Questions::listen();
    let guardian =
        Guardian::start((command, fate), found, &permit, kill_after, &holding, questions.socket())
            .map_err(|error| {
                let message = format!("the command can't be guarded: {error}");
                Failure::new(Failure::UNAVAILABLE, message)
            })?;
    let group = guardian.group;
    let mut running = Running {
        terminal: Terminal::of(group),
        fate,
        found,
        permit: &permit,
        kill_after,
        guardian,
        stage: Stage::Waits,
        wants_terminal: false,
        ending: None,
        lost: None,
    };
    let end = tokio::select! {
        end = running.until_it_ends(signals) => end,
        never = questions.answer(&permit) => match never {},
    };
    let Running { mut ending, lost, terminal, .. } = running;
    drop(terminal);
    let unguarded = ending.is_none() && end.is_killed();
    if unguarded || matches!(end, End::Status(Err(_))) {
        ending = Ending::begin(group, OnLost::Kill, Duration::ZERO, Moment::now());
    }
    finish(group, ending).await;
    let lost = match lost {
        None if !permit.is_valid() => Some(reason(&permit).await),
        lost => lost,
    };
    if let Some(reason) = lost {
        holding.record("lock.lost", reason.name());
        let message = format!("{what} was lost: {reason} ({})", reason.name());
        return Err(Failure::new(Failure::LOST, message));
    }
    // A later loss does not matter, because no command is guarded any more.
    drop(holding);
    let _ = permit.release().instrument(debug_span!("lock.release")).await;
    if unguarded {
        let message = format!("the command was killed with its guardian; {what} was released");
        return Err(Failure::new(Failure::LOST, message));
    }
    match end {
        End::Status(Ok(status)) => Ok(code(status)),
        End::Status(Err(error)) => Err(Failure::new(Failure::UNAVAILABLE, error.to_string())),
        End::Before(signal) => {
            let message = format!("stopped by {signal} before the command began");
            Err(Failure::new(Failure::signalled(signal as i32), message))
        }
    }
}

/// Waits for the remaining processes of the group after the guardian has ended.
async fn finish(group: Group, ending: Option<Ending>) {
    match ending {
        Some(ending) if !ending.finish().await => {
            say("a child process survived SIGKILL; releasing the lock anyway".into()).await;
        }
        None if group.has_followers() => {
            say("the command left processes behind: they run on without the lock".into()).await;
        }
        _ => {}
    }
}

/// How supervision ended.
enum End {
    /// The guardian has ended, and the command with it if there was one.
    Status(io::Result<ExitStatus>),
    /// This signal arrived before the command started.
    Before(Signal),
}

impl End {
    fn is_killed(&self) -> bool {
        matches!(self, Self::Status(Ok(status)) if status.signal().is_some())
    }
}

/// State of the guardian. Signals end it before it is ready, and only the guardian would
/// receive them until the command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The guardian was started, and has no order to start the command.
    Waits,
    /// The guardian was ordered to start the command.
    Starts,
    /// The command runs.
    Runs,
}

/// Returns the reason of a loss that is certain.
async fn reason(permit: &Permit) -> LostReason {
    let reason = tokio::time::timeout(REASON, permit.lost()).await;
    reason.unwrap_or(LostReason::HeartbeatMissed)
}

struct Running<'a> {
    terminal: Terminal,
    fate: &'a Fate,
    found: &'a FoundLock,
    permit: &'a Permit,
    kill_after: Duration,
    guardian: Guardian,
    stage: Stage,
    /// Whether the command is stopped until it may use the terminal.
    wants_terminal: bool,
    /// State of ending the command, if it is being ended.
    ending: Option<Ending>,
    lost: Option<LostReason>,
}

impl Running<'_> {
    /// Returns when the guardian has ended, which it does together with the command.
    /// Before there is a command, also returns on a signal to end.
    async fn until_it_ends(&mut self, signals: &mut Signals) -> End {
        let permit = self.permit;
        let mut draining = false;
        let mut killed = false;
        loop {
            let act_at = permit.valid_until() - MARGIN - self.kill_after;
            let watched = self.lost.is_none();
            let (ending, stage, told) = (self.ending, self.stage, self.guardian.told);
            let kill = async {
                match ending {
                    Some(ending) => ending.kill_in_time().await,
                    None => std::future::pending().await,
                }
            };
            let signal = async {
                match stage {
                    Stage::Waits => signals.next_to_end().await,
                    // Signals stay pending until the command runs.
                    Stage::Starts => std::future::pending().await,
                    Stage::Runs => signals.next().await,
                }
            };
            tokio::select! {
                status = self.guardian.process.wait() => return End::Status(status),
                report = self.guardian.reports.next() => self.hear(report),
                signal = signal => match stage {
                    Stage::Runs => self.guardian.group.signal(signal),
                    Stage::Waits | Stage::Starts => {
                        self.guardian.group.signal(Signal::SIGKILL);
                        return End::Before(signal);
                    }
                },
                () = permit.proved_after(told), if watched && stage != Stage::Waits => {
                    self.guardian.tell_valid(permit.valid_until());
                }
                reason = permit.lost(), if watched => self.lose(reason),
                () = until(act_at), if watched => {
                    if act_at.left().is_zero() {
                        self.lose(LostReason::HeartbeatMissed);
                    }
                }
                () = tokio::time::sleep(LOOK_AT_TERMINAL), if stage != Stage::Waits => {
                    self.look_at_terminal();
                }
                () = permit.draining(), if !draining => {
                    draining = true;
                    self.drain();
                }
                () = kill, if !killed => killed = true,
            }
        }
    }

    fn hear(&mut self, report: Option<Report>) {
        match report {
            Some(Report::Ready) => {
                // In this order, so that the command has the terminal from its start.
                self.look_at_terminal();
                self.guardian.tell_valid(self.permit.valid_until());
                self.stage = Stage::Starts;
            }
            Some(Report::Runs) => self.stage = Stage::Runs,
            Some(Report::WantsTerminal) => {
                let is_news = !self.wants_terminal;
                self.wants_terminal = true;
                self.look_at_terminal();
                if is_news && self.wants_terminal {
                    let text = "the command is stopped until it may use the terminal: \
                                bring it to the foreground (fg)";
                    tokio::spawn(say(text.to_owned()));
                }
            }
            // The guardian has ended or is about to.
            None => {}
        }
    }

    fn look_at_terminal(&mut self) {
        let group = self.guardian.group;
        match self.terminal.lend(self.wants_terminal) {
            Foreground::Other => return,
            Foreground::Command if self.wants_terminal => group.signal(Signal::SIGCONT),
            // The command would never continue and would keep the lock. The kernel does
            // the same with a stopped job when its shell ends.
            Foreground::Gone if self.wants_terminal => {
                group.signal(Signal::SIGHUP);
                group.signal(Signal::SIGCONT);
            }
            Foreground::Command | Foreground::Gone => {}
        }
        self.wants_terminal = false;
    }

    /// Handles a loss: the lock no longer guards the command, or will expire before the
    /// command could be ended later.
    fn lose(&mut self, reason: LostReason) {
        let latest = self.permit.valid_until() - MARGIN;
        let how = self.fate.on_lost;
        self.end(how, latest);
        let what = self.found.what(self.permit.slot());
        // Do not wait for the reader of stderr.
        let text = format!("{what} was lost: {reason}; the command {}", how.in_words());
        tokio::spawn(say(text));
        self.lost = Some(reason);
    }

    fn drain(&mut self) {
        let stop = self.fate.on_drain == OnDrain::Stop && self.lost.is_none();
        if stop {
            // If the lock is lost before then, the guardian kills the command in time.
            self.end(OnLost::Terminate, Moment::now() + self.kill_after);
        }
        let then = if stop { "the command is ended" } else { "the command may finish" };
        tokio::spawn(say(format!("{}; {then}", self.found.draining(self.permit.slot()))));
    }

    fn end(&mut self, how: OnLost, latest: Moment) {
        if self.ending.is_none() {
            self.guardian.orders.tell(&Order::Ending);
            self.ending = Ending::begin(self.guardian.group, how, self.kill_after, latest);
        }
    }
}

/// The guardian's process and its pipes.
struct Guardian {
    process: Child,
    group: Group,
    orders: Outgoing<Order>,
    reports: Incoming<Report>,
    /// The last validity sent to the guardian.
    told: Moment,
}

impl Guardian {
    /// Starts the guardian in its own process group. The command is started by the first
    /// order.
    fn start(
        (program, fate): (&[OsString], &Fate),
        found: &FoundLock,
        permit: &Permit,
        kill_after: Duration,
        holding: &Span,
        socket: Option<&str>,
    ) -> io::Result<Self> {
        let (orders, from_us) = Outgoing::with_inlet()?;
        let (reports, to_us) = Incoming::with_outlet()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("lockkeeper")
            .arg("guardian")
            .arg(format!("--orders={}", from_us.as_raw_fd()))
            .arg(format!("--reports={}", to_us.as_raw_fd()))
            .arg(format!("--kill-after={}ms", kill_after.as_millis()))
            .arg(format!("--on-lost={}", fate.on_lost))
            .arg("--")
            .args(program)
            .env("LOCK_NAME", found.name.as_str())
            .env("LOCK_HOLDER_ID", permit.id())
            .process_group(0);
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let values = [
            ("LOCK_SLOT", number(permit.slot().map(u64::from))),
            ("LOCK_TOKEN_ID", number(permit.token_id())),
            ("LOCK_TOKEN", number(permit.fence())),
            (SOCKET, socket.map(str::to_owned)),
        ];
        for (variable, value) in values {
            match value {
                Some(value) => command.env(variable, value),
                // The value of an outer lock must not be mistaken for this lock's.
                None => command.env_remove(variable),
            };
        }
        if let Some(parent) = traceparent(holding) {
            command.env("TRACEPARENT", parent);
        }
        let process = command.spawn()?;
        let pid = process.id().and_then(|pid| i32::try_from(pid).ok());
        let group = Group::led_by(pid.ok_or(io::ErrorKind::NotFound)?);
        Ok(Self { process, group, orders, reports, told: permit.valid_until() })
    }

    fn tell_valid(&mut self, until: Moment) {
        self.orders.tell(&Order::Valid(until));
        self.told = until;
    }
}
