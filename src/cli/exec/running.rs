//! Supervises the running command: sends proofs of the lock to the guardian, forwards
//! signals, lends the terminal, and ends the command when the lock is lost or drained.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use lockkeeper_semaphore::{LostReason, Moment, Permit};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tracing::{Instrument, Span, debug_span};

use super::environment::Environment;
use super::guardian::{MARGIN, unguarded, until};
use super::on_lost::{OnLost, survivors};
use super::outcome::{OnDrain, Outcome, say};
use super::pipes::{Incoming, Launch, Order, Outgoing, Report};
use super::terminal::{Foreground, Terminal};
use crate::cli::asking::{Questions, SOCKET};
use crate::cli::failure::Failure;
use crate::cli::hold::held;
use crate::cli::processes::{Descendants, Ending};
use crate::cli::signals::Signals;
use crate::cli::target::FoundLock;
use crate::cli::telemetry::traceparent;

/// Time limit for learning the reason of a lost permit.
const REASON: Duration = Duration::from_secs(1);

/// Polling interval of the terminal. A job is not notified when a shell brings it to the
/// foreground.
const LOOK_AT_TERMINAL: Duration = Duration::from_millis(250);

/// Runs the command under the permit, and releases the permit at the end. Returns the
/// command's exit code.
pub(super) async fn run(
    guardian: Guardian,
    outcome: &Outcome,
    found: &FoundLock,
    permit: Permit,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let what = found.what(permit.slot());
    // A longer time would end the command although the next proof is not overdue.
    let kill_after = outcome.kill_after.min(permit.valid_until().left() / 3);
    let holding = held(found, &permit);
    let questions = Questions::listen();
    let mut running = Running {
        terminal: Terminal::of(guardian.group),
        outcome,
        found,
        permit: &permit,
        kill_after,
        told: permit.valid_until(),
        guardian,
        is_started: false,
        wants_terminal: false,
        ending: None,
        lost: None,
    };
    running.start(environment(found, &permit, &holding, questions.socket()));
    let end = tokio::select! {
        end = running.until_it_ends(signals) => end,
        never = questions.answer(&permit) => match never {},
    };
    let Running { mut ending, lost, terminal, guardian, .. } = running;
    drop(terminal);
    let is_killed = end.as_ref().is_ok_and(|status| status.signal().is_some());
    let is_unguarded = ending.is_none() && is_killed;
    if is_unguarded || end.is_err() {
        ending = Some(Ending::killing_at(Moment::now()));
    }
    finish(&guardian.processes, ending).await;
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
    if is_unguarded {
        let message = format!("the command was killed with its guardian; {what} was released");
        return Err(Failure::new(Failure::LOST, message));
    }
    end.map(Failure::of_status)
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))
}

/// Waits for the remaining processes of the command after the guardian has ended.
async fn finish(processes: &Descendants, ending: Option<Ending>) {
    match ending {
        Some(ending) if !ending.finish(processes).await => say(survivors(processes)).await,
        None if !processes.are_gone() => {
            let names = processes.names();
            let text = "the command left processes behind: they run on without the lock";
            say(format!("{text}: {names}")).await;
        }
        _ => {}
    }
}

/// Returns the variables by which the command finds out about its lock.
fn environment(
    found: &FoundLock,
    permit: &Permit,
    holding: &Span,
    socket: Option<&str>,
) -> Environment {
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let mut environment = Environment::default();
    environment.set("LOCK_NAME", Some(found.name.as_str().to_owned()));
    environment.set("LOCK_HOLDER_ID", Some(permit.id().to_owned()));
    // The value of an outer lock must not be mistaken for this lock's.
    environment.set("LOCK_SLOT", number(permit.slot().map(u64::from)));
    environment.set("LOCK_TOKEN_ID", number(permit.token_id()));
    environment.set("LOCK_TOKEN", number(permit.fence()));
    environment.set(SOCKET, socket.map(str::to_owned));
    if let Some(parent) = traceparent(holding) {
        environment.set("TRACEPARENT", Some(parent));
    }
    environment
}

/// Returns the reason of a loss that is certain.
async fn reason(permit: &Permit) -> LostReason {
    let reason = tokio::time::timeout(REASON, permit.lost()).await;
    reason.unwrap_or(LostReason::HeartbeatMissed)
}

struct Running<'a> {
    terminal: Terminal,
    outcome: &'a Outcome,
    found: &'a FoundLock,
    permit: &'a Permit,
    kill_after: Duration,
    guardian: Guardian,
    /// The last validity sent to the guardian.
    told: Moment,
    /// Whether the command was started. Signals before that stay pending: they are for the
    /// command.
    is_started: bool,
    /// Whether the command is stopped until it may use the terminal.
    wants_terminal: bool,
    /// State of ending the command, if it is being ended.
    ending: Option<Ending>,
    lost: Option<LostReason>,
}

impl Running<'_> {
    /// Orders the guardian to start the command.
    fn start(&mut self, environment: Environment) {
        // In this order, so that the command has the terminal from its start.
        self.look_at_terminal();
        let launch = Launch { kill_after: self.kill_after, environment };
        self.guardian.orders.tell(&Order::Start(launch));
        self.tell_valid();
    }

    fn tell_valid(&mut self) {
        self.told = self.permit.valid_until();
        self.guardian.orders.tell(&Order::Valid(self.told));
    }

    /// Returns when the guardian has ended, which it does together with the command.
    async fn until_it_ends(&mut self, signals: &mut Signals) -> io::Result<ExitStatus> {
        let permit = self.permit;
        let mut draining = false;
        loop {
            self.guardian.exclude_others();
            let act_at = permit.valid_until() - MARGIN - self.kill_after;
            let watched = self.lost.is_none();
            let (ending, told) = (self.ending, self.told);
            let kill = async {
                match ending {
                    Some(ending) => ending.due().await,
                    None => std::future::pending().await,
                }
            };
            let Guardian { process, reports, processes, .. } = &mut self.guardian;
            tokio::select! {
                status = process.wait() => return status,
                report = reports.next() => self.hear(report),
                signal = signals.next(), if self.is_started => self.guardian.pass_on(signal),
                () = permit.proved_after(told), if watched => self.tell_valid(),
                reason = permit.lost(), if watched => self.lose(reason),
                () = until(act_at), if watched => {
                    if act_at.left().is_zero() {
                        self.lose(LostReason::HeartbeatMissed);
                    }
                }
                () = tokio::time::sleep(LOOK_AT_TERMINAL) => self.look_at_terminal(),
                () = permit.draining(), if !draining => {
                    draining = true;
                    self.drain();
                }
                () = kill => {
                    if let Some(ending) = &mut self.ending {
                        ending.kill(processes);
                    }
                }
                never = processes.awaited().reap_others() => match never {},
            }
        }
    }

    fn hear(&mut self, report: Option<Report>) {
        match report {
            Some(Report::Runs) => self.is_started = true,
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
            Some(Report::Ready) | None => {}
        }
    }

    fn look_at_terminal(&mut self) {
        let processes = &self.guardian.processes;
        match self.terminal.lend(self.wants_terminal) {
            Foreground::Other => return,
            Foreground::Command if self.wants_terminal => processes.signal(Signal::SIGCONT),
            // The command would never continue and would keep the lock. The kernel does
            // the same with a stopped job when its shell ends.
            Foreground::Gone if self.wants_terminal => {
                processes.signal(Signal::SIGHUP);
                processes.signal(Signal::SIGCONT);
            }
            Foreground::Command | Foreground::Gone => {}
        }
        self.wants_terminal = false;
    }

    /// Handles a loss: the lock no longer guards the command, or will expire before the
    /// command could be ended later.
    fn lose(&mut self, reason: LostReason) {
        let latest = self.permit.valid_until() - MARGIN;
        let how = self.outcome.on_lost;
        self.end(how, latest);
        let what = self.found.what(self.permit.slot());
        // Do not wait for the reader of stderr.
        let text = format!("{what} was lost: {reason}; {}", how.in_words());
        tokio::spawn(say(text));
        self.lost = Some(reason);
    }

    fn drain(&mut self) {
        let stop = self.outcome.on_drain == OnDrain::Stop && self.lost.is_none();
        if stop {
            // If the lock is lost before then, the guardian kills the command in time.
            self.end(OnLost::Terminate, Moment::now() + self.kill_after);
        }
        let then = if stop { "stopping the command" } else { "the command may finish" };
        tokio::spawn(say(format!("{}; {then}", self.found.draining(self.permit.slot()))));
    }

    fn end(&mut self, how: OnLost, latest: Moment) {
        if self.ending.is_none() {
            self.guardian.orders.tell(&Order::Ending);
            self.guardian.exclude_others();
            self.ending = how.begin(&self.guardian.processes, self.kill_after, latest);
        }
    }
}

/// The guardian's process and its pipes, and the processes of its command.
pub(super) struct Guardian {
    process: Child,
    pid: i32,
    group: Pid,
    processes: Descendants,
    orders: Outgoing<Order>,
    reports: Incoming<Report>,
}

impl Guardian {
    /// Starts the guardian in its own process group, and waits until it has started all
    /// processes that the command needs. Nothing is held yet: a limit on processes or
    /// descriptors that prevents the command is reached here.
    ///
    /// If cancelled, the guardian ends.
    pub async fn start(program: &[OsString], outcome: &Outcome) -> Result<Self, Failure> {
        let mut guardian = Self::spawn(program, outcome).map_err(|error| unguarded(&error))?;
        if guardian.reports.next().await == Some(Report::Ready) {
            return Ok(guardian);
        }
        // It has reported the cause.
        let status = guardian.process.wait().await.map_err(|error| unguarded(&error))?;
        Err(Failure::silent(Failure::of_status(status)))
    }

    fn spawn(program: &[OsString], outcome: &Outcome) -> io::Result<Self> {
        let processes = Descendants::adopt()?;
        let (orders, from_us) = Outgoing::with_inlet()?;
        let (reports, to_us) = Incoming::with_outlet()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("lockkeeper")
            .arg("guardian")
            .arg(format!("--orders={}", from_us.as_raw_fd()))
            .arg(format!("--reports={}", to_us.as_raw_fd()))
            .arg(format!("--on-lost={}", outcome.on_lost))
            .arg("--")
            .args(program)
            .process_group(0);
        let process = processes.awaited().start(|| command.spawn(), Child::id)?;
        let pid = process.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        let group = Pid::from_raw(pid);
        let processes = processes.with_group(group);
        Ok(Self { process, pid, group, processes, orders, reports })
    }

    /// Ends the guardian, whose command was not started.
    pub async fn dismiss(self) {
        let Self { mut process, orders, .. } = self;
        drop(orders);
        let _ = process.wait().await;
    }

    fn pass_on(&mut self, signal: Signal) {
        self.exclude_others();
        self.processes.pass_on(signal);
    }

    fn exclude_others(&mut self) {
        self.processes.exclude_orphans_beside(self.pid);
    }
}
