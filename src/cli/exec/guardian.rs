//! The guardian: the process between `exec` and the command. It starts the command and
//! exits with its exit code. If `exec` ends or stops responding, the guardian ends the
//! command before another client may acquire the lock.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use futures::FutureExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::fate::say;
use super::group::{Ending, Group, OnLost};
use super::pipes::{Incoming, Order, Outgoing, Report};
use super::terminal;
use crate::cli::common::duration;
use crate::cli::failure::Failure;
use crate::cli::signals::{FORWARDED, STOPPING, Signals};
use crate::clock::Moment;

/// The last process is killed this long before another client may acquire the lock.
/// (`valid_until` already leaves room for other delays.)
pub(super) const MARGIN: Duration = Duration::from_millis(100);

/// Delay of the guardian after `exec`, because `exec` can report the reason.
const LATER: Duration = Duration::from_millis(50);

/// Longest time between two checks of the clock, because timers stop while the machine is
/// suspended.
const LOOK_AT_CLOCK: Duration = Duration::from_millis(250);

/// Time in which the runtime receives pending events from the kernel.
const A_LOOK: Duration = Duration::from_millis(1);

/// Arguments of `lockkeeper guardian`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Number of the pipe from `exec`
    #[arg(long)]
    orders: i32,

    /// Number of the pipe to `exec`
    #[arg(long)]
    reports: i32,

    /// Time between TERM and KILL
    #[arg(long, value_parser = duration)]
    kill_after: Duration,

    /// What to do if the lock is lost
    #[arg(long)]
    on_lost: OnLost,

    /// Command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(&error))?;
    Err(Failure::silent(runtime.block_on(guard(arguments))?))
}

fn failed(error: &io::Error) -> Failure {
    Failure::new(Failure::UNAVAILABLE, format!("the command can't be guarded: {error}"))
}

async fn guard(arguments: &Arguments) -> Result<u8, Failure> {
    // Caught so that they do not end the guardian. They are for the command, which is in
    // the same group.
    let mut forwarded = Signals::listen(&FORWARDED)?;
    let mut stopping = Signals::listen(&STOPPING)?;
    terminal::like_others();
    let mut orders = Incoming::open(arguments.orders).map_err(|error| failed(&error))?;
    let mut reports = Outgoing::open(arguments.reports).map_err(|error| failed(&error))?;
    reports.tell(&Report::Ready);
    let Some(valid_until) = first_proof(&mut orders, arguments.kill_after).await else {
        return Ok(Failure::UNAVAILABLE);
    };
    let command = start(&arguments.command)?;
    // The terminal sends Ctrl-C to the whole group. Before the command ran, only this
    // process received it.
    tokio::time::sleep(A_LOOK).await;
    while let Some(signal) = forwarded.next().now_or_never() {
        pass_on(signal, &command);
    }
    reports.tell(&Report::Runs);
    let group = Group::own();
    let guard = Guard { arguments, group, orders, valid_until, exec_ends: false, done: false };
    guard.until_it_ends(command, &mut stopping, &mut reports).await
}

/// Waits for a proof that leaves enough time to end a command. Returns `None` if the lock
/// is lost before, or if `exec` has ended. No command was started then.
async fn first_proof(orders: &mut Incoming<Order>, kill_after: Duration) -> Option<Moment> {
    loop {
        match orders.next().await? {
            Order::Valid(until) if !(until - MARGIN - kill_after).left().is_zero() => {
                return Some(until);
            }
            // The machine was suspended since. The next proof is on its way.
            Order::Valid(_) => {}
            Order::Ending => return None,
        }
    }
}

/// Sends the signal to the command's first process.
fn pass_on(signal: Signal, command: &Child) {
    if let Some(pid) = command.id().and_then(|pid| i32::try_from(pid).ok()) {
        // If the process has ended, the main loop notices.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Event that wakes the guardian.
enum Event {
    Ended(io::Result<ExitStatus>),
    /// From `exec`; `None` if `exec` has ended.
    Order(Option<Order>),
    Late,
    Stopped(Signal),
}

/// The guardian of a running command.
struct Guard<'a> {
    arguments: &'a Arguments,
    group: Group,
    orders: Incoming<Order>,
    /// Time until which the lock is proven.
    valid_until: Moment,
    /// `exec` already ends the command; the guardian only has to send KILL.
    exec_ends: bool,
    /// Whether a loss requires no more action.
    done: bool,
}

impl Guard<'_> {
    /// Returns the command's exit code when it has ended.
    async fn until_it_ends(
        mut self,
        mut command: Child,
        stopping: &mut Signals,
        reports: &mut Outgoing<Report>,
    ) -> Result<u8, Failure> {
        loop {
            let grace = if self.exec_ends { Duration::ZERO } else { self.arguments.kill_after };
            let act_at = self.valid_until - MARGIN - grace + LATER;
            let event = tokio::select! {
                status = command.wait() => Event::Ended(status),
                order = self.orders.next() => Event::Order(order),
                () = until(act_at), if !self.done => {
                    if !act_at.left().is_zero() {
                        continue;
                    }
                    Event::Late
                }
                signal = stopping.next() => Event::Stopped(signal),
            };
            match event {
                Event::Ended(status) => return status.map(code).map_err(|error| failed(&error)),
                Event::Order(order) => self.obey(order).await,
                Event::Late => self.check_whether_late().await,
                // A command stopped by Ctrl-Z would keep the lock, and the shell would
                // not notice.
                Event::Stopped(Signal::SIGTSTP) => self.group.signal(Signal::SIGCONT),
                Event::Stopped(_) => reports.tell(&Report::WantsTerminal),
            }
        }
    }

    async fn obey(&mut self, order: Option<Order>) {
        match order {
            Some(Order::Valid(until)) => self.valid_until = until,
            Some(Order::Ending) => match self.arguments.on_lost {
                OnLost::Terminate | OnLost::Kill => self.exec_ends = true,
                OnLost::Signal(_) | OnLost::Warn => self.done = true,
            },
            None => self.end("lockkeeper exec has ended").await,
        }
    }

    /// Handles the deadline. `exec` may have written further orders while this process
    /// was stopped or not scheduled. It is late only if no order is left to read after
    /// the clock was checked.
    async fn check_whether_late(&mut self) {
        tokio::time::sleep(A_LOOK).await;
        match self.orders.next().now_or_never() {
            Some(order) => self.obey(order).await,
            None => self.end("lockkeeper exec does not answer").await,
        }
    }

    async fn end(&mut self, why: &str) {
        if self.done {
            return;
        }
        // If `exec` still responds, it has already asked the command to end.
        let asked = self.exec_ends && !self.orders.is_gone();
        let how = if asked { OnLost::Kill } else { self.arguments.on_lost };
        let latest = self.valid_until - MARGIN + LATER;
        let ending = Ending::begin(self.group, how, self.arguments.kill_after, latest);
        say(format!("{why}: the lock is lost, and so the command {}", how.in_words())).await;
        match ending {
            Some(ending) => ending.kill().await,
            None => self.done = true,
        }
    }
}

/// Sleeps until this moment, or for [`LOOK_AT_CLOCK`] if that is shorter.
pub(super) async fn until(moment: Moment) {
    tokio::time::sleep(moment.left().min(LOOK_AT_CLOCK)).await;
}

/// Starts the command with the arguments of `exec`: without a shell, and with the
/// guardian's input, output and environment.
fn start(command: &[OsString]) -> Result<Child, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::new(Failure::USAGE, "there is no command"));
    };
    let started = Command::new(program).args(arguments).spawn();
    started.map_err(|error| Failure::not_started(program, &error))
}

/// Returns the exit code for a process status, as in shells.
pub(super) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => Failure::signalled(signal),
        (None, None) => u8::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[tokio::test]
    async fn a_proof_that_is_past_starts_no_command() {
        let (mut exec, pipe) = Outgoing::with_inlet().unwrap();
        let mut orders = Incoming::open(pipe.into_raw_fd()).unwrap();
        let grace = Duration::from_secs(5);
        let later = Moment::now() + Duration::from_secs(60);
        for until in [Moment::now() - grace, Moment::now() + grace, later] {
            exec.tell(&Order::Valid(until));
        }
        // The second proof leaves no time to end a command.
        assert_eq!(first_proof(&mut orders, grace).await, Some(later));
        exec.tell(&Order::Valid(Moment::now()));
        exec.tell(&Order::Ending);
        exec.tell(&Order::Valid(later));
        assert_eq!(first_proof(&mut orders, grace).await, None);
    }
}
