//! The guardian: the process between `exec` and the command. It starts the command and
//! exits with its exit code. If `exec` ends or stops responding, the guardian ends the
//! command before another client may acquire the lock. See `starter` for the process that
//! becomes the command, and `processes` for how it is ended.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use futures::FutureExt;
use lockkeeper_net::clock::Moment;
use nix::sys::signal::Signal;
use nix::unistd::getpgrp;
use tokio::process::Child;
use tokio::task::JoinHandle;

use super::on_lost::{OnLost, survivors};
use super::outcome::say;
use super::pipes::{Incoming, Launch, Order, Outgoing, Report};
use super::starter::{launch_command, start};
use super::terminal;
use crate::cli::failure::Failure;
use crate::cli::processes::{Descendants, Ending, LOOK, Progress};
use crate::cli::signals::{ENDING, STOPPING, Signals};

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

    /// What to do if the lock is lost
    #[arg(long)]
    on_lost: OnLost,

    /// Command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // A single thread, which starts the command: the kernel kills the command with it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unguarded(&error))?;
    Err(Failure::silent(runtime.block_on(guard(arguments))?))
}

/// The failure to guard a command.
pub(super) fn unguarded(error: &io::Error) -> Failure {
    let advice = if Path::new("/proc/self").exists() {
        "Check the limits on processes and descriptors"
    } else {
        "Mount the file system /proc: it has no entry of this process"
    };
    Failure::new(Failure::UNAVAILABLE, format!("the command can't be guarded: {error}. {advice}"))
}

async fn guard(arguments: &Arguments) -> Result<u8, Failure> {
    // Caught so that they do not end the guardian. They are for the command, which is in
    // the same group.
    let forwarded = Signals::forwarded()?;
    let stopping = Signals::listen(&STOPPING)?;
    terminal::like_others();
    let processes = Descendants::adopt().map_err(|error| unguarded(&error))?.with_group(getpgrp());
    let mut orders = Incoming::open(arguments.orders).map_err(|error| unguarded(&error))?;
    let mut reports = Outgoing::open(arguments.reports).map_err(|error| unguarded(&error))?;
    let (mut command, starter) =
        start(processes.awaited(), &arguments.command).map_err(|error| unguarded(&error))?;
    reports.tell(&Report::Ready);
    let Some((launch, valid_until)) = first_proof(&mut orders).await else {
        // The end of its pipe ends the starter. It is reaped here: until the init process
        // did, it would count against the limit of processes.
        drop(starter);
        let _ = command.wait().await;
        return Ok(Failure::UNAVAILABLE);
    };
    launch_command(starter, &launch);
    reports.tell(&Report::Runs);
    let guard = Guard {
        on_lost: arguments.on_lost,
        kill_after: launch.kill_after,
        processes,
        command,
        forwarded,
        stopping,
        orders,
        reports,
        valid_until,
        exec_ends: false,
        done: false,
        signalled: None,
        ending: None,
        status: None,
        saying: None,
    };
    guard.until_it_ends().await
}

/// Waits for a proof that leaves enough time to end a command. Returns `None` if the lock
/// is lost before, or if `exec` has ended. No command was started then.
async fn first_proof(orders: &mut Incoming<Order>) -> Option<(Launch, Moment)> {
    let mut launch: Option<Launch> = None;
    loop {
        match (orders.next().await?, &launch) {
            (Order::Start(order), _) => launch = Some(order),
            (Order::Valid(until), Some(known))
                if !(until - MARGIN - known.kill_after).left().is_zero() =>
            {
                return launch.map(|launch| (launch, until));
            }
            // The machine was suspended since. The next proof is on its way.
            (Order::Valid(_), _) => {}
            (Order::Ending, _) => return None,
        }
    }
}

/// Event that wakes the guardian.
enum Event {
    Ended(io::Result<ExitStatus>),
    /// From `exec`; `None` if `exec` has ended.
    Order(Option<Order>),
    /// It is time to check the clock.
    Clock,
    Signalled(Signal),
    Stopped(Signal),
    /// It is time to kill.
    Kill,
    /// It is time to check whether all processes have ended.
    Look,
}

/// The guardian of a running command.
struct Guard {
    on_lost: OnLost,
    kill_after: Duration,
    processes: Descendants,
    command: Child,
    forwarded: Signals,
    stopping: Signals,
    orders: Incoming<Order>,
    reports: Outgoing<Report>,
    /// Time until which the lock is proven.
    valid_until: Moment,
    /// `exec` already ends the command; the guardian only has to send KILL.
    exec_ends: bool,
    /// Whether a loss requires no more action.
    done: bool,
    /// The last signal that asked the command to end. Processes that it leaves behind then are not
    /// left behind on purpose.
    signalled: Option<Signal>,
    /// State of ending the processes, if the guardian ends them.
    ending: Option<Ending>,
    /// The result of the command's first process, while others are being ended.
    status: Option<ExitStatus>,
    /// The message that is being printed.
    saying: Option<JoinHandle<()>>,
}

impl Guard {
    /// Returns the command's exit code when it has ended: its first process, and all others
    /// unless it left them behind on purpose.
    async fn until_it_ends(mut self) -> Result<u8, Failure> {
        loop {
            match self.next_event().await {
                Event::Ended(status) => {
                    let status = status.map_err(|error| unguarded(&error))?;
                    self.status = Some(status);
                    // The signal that ended it may be noticed later than its end.
                    tokio::time::sleep(A_LOOK).await;
                    while let Some(signal) = self.forwarded.next().now_or_never() {
                        self.hear(signal);
                    }
                    if !self.must_all_end() {
                        return Ok(self.exit(status).await);
                    }
                }
                Event::Order(order) => self.obey(order.as_ref()),
                Event::Clock if self.act_at().left().is_zero() => {
                    self.check_whether_late().await;
                }
                Event::Clock => {}
                Event::Signalled(signal) => self.hear(signal),
                // A command stopped by Ctrl-Z would keep the lock, and the shell would
                // not notice.
                Event::Stopped(Signal::SIGTSTP) => self.processes.signal(Signal::SIGCONT),
                Event::Stopped(_) => self.reports.tell(&Report::WantsTerminal),
                Event::Kill => {
                    if let Some(ending) = &mut self.ending {
                        ending.kill(&self.processes);
                    }
                }
                Event::Look => {
                    if let Some(code) = self.look().await {
                        return Ok(code);
                    }
                }
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        let (act_at, ending) = (self.act_at(), self.ending);
        let kill = async {
            match ending {
                Some(ending) => ending.due().await,
                None => std::future::pending().await,
            }
        };
        let is_being_ended = self.status.is_some() || ending.is_some_and(Ending::is_killing);
        tokio::select! {
            status = self.command.wait(), if self.status.is_none() => Event::Ended(status),
            order = self.orders.next() => Event::Order(order),
            () = until(act_at), if !self.done && ending.is_none() => Event::Clock,
            signal = self.forwarded.next() => Event::Signalled(signal),
            signal = self.stopping.next() => Event::Stopped(signal),
            () = kill => Event::Kill,
            () = tokio::time::sleep(LOOK), if is_being_ended => Event::Look,
            never = self.processes.awaited().reap_others() => match never {},
        }
    }

    fn hear(&mut self, signal: Signal) {
        if ENDING.contains(&signal) {
            self.signalled = Some(signal);
        }
    }

    /// Returns when the lock is too close to its end.
    fn act_at(&self) -> Moment {
        let grace = if self.exec_ends { Duration::ZERO } else { self.kill_after };
        self.latest() - grace
    }

    /// Whether the guardian stays until no process is left.
    fn must_all_end(&mut self) -> bool {
        if let (Some(signal), None, false) = (self.signalled, self.ending, self.exec_ends) {
            let kill_at = (Moment::now() + self.kill_after).min(self.latest());
            if signal != Signal::SIGTERM {
                // Shells start background processes that ignore Ctrl-C.
                self.processes.pass_on(Signal::SIGTERM);
            }
            self.ending = Some(Ending::killing_at(kill_at));
        }
        self.ending.is_some() || self.exec_ends
    }

    /// Returns when the last process must be killed.
    fn latest(&self) -> Moment {
        self.valid_until - MARGIN + LATER
    }

    /// Checks whether the processes have ended. Returns the exit code if there is nothing
    /// more to do.
    async fn look(&mut self) -> Option<u8> {
        let progress = match &mut self.ending {
            Some(ending) => ending.advance(&self.processes),
            // `exec` ends them, or a loss does.
            None if self.processes.are_gone() => Progress::Gone,
            None => Progress::Ending,
        };
        match (progress, self.status) {
            (Progress::Gone, Some(status)) => Some(self.exit(status).await),
            (Progress::Survived, status) => {
                say(survivors(&self.processes)).await;
                Some(status.map_or(Failure::signalled(Signal::SIGKILL as i32), Failure::of_status))
            }
            _ => None,
        }
    }

    fn obey(&mut self, order: Option<&Order>) {
        match order {
            Some(Order::Valid(until)) => self.valid_until = *until,
            Some(Order::Ending) => match self.on_lost {
                OnLost::Terminate | OnLost::Kill => self.exec_ends = true,
                OnLost::Signal(_) | OnLost::Warn => self.done = true,
            },
            // There is one lock only.
            Some(Order::Start(_)) => {}
            None => self.end("lockkeeper exec has ended"),
        }
    }

    /// Handles the deadline. `exec` may have written further orders while this process
    /// was stopped or not scheduled. It is late only if no order is left to read after
    /// the clock was checked.
    async fn check_whether_late(&mut self) {
        tokio::time::sleep(A_LOOK).await;
        match self.orders.next().now_or_never() {
            Some(order) => self.obey(order.as_ref()),
            None => self.end("lockkeeper exec does not answer"),
        }
    }

    /// Ends the command because of a loss.
    fn end(&mut self, why: &str) {
        if self.done {
            return;
        }
        // If `exec` still responds, it has already asked the command to end.
        let asked = self.exec_ends && !self.orders.is_gone();
        let how = if asked { OnLost::Kill } else { self.on_lost };
        self.ending = how.begin(&self.processes, self.kill_after, self.latest());
        self.done = true;
        // In the background: nothing delays the end of the command.
        let text = format!("{why}: the lock is lost; {}", how.in_words());
        self.saying = Some(tokio::spawn(say(text)));
    }

    /// Finishes the pending message, and returns the exit code.
    async fn exit(&mut self, status: ExitStatus) -> u8 {
        if let Some(saying) = self.saying.take() {
            let _ = saying.await;
            if self.ending.is_some() {
                say("the command has ended".to_owned()).await;
            }
        }
        Failure::of_status(status)
    }
}

/// Sleeps until this moment, or for [`LOOK_AT_CLOCK`] if that is shorter.
pub(super) async fn until(moment: Moment) {
    tokio::time::sleep(moment.left().min(LOOK_AT_CLOCK)).await;
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;
    use crate::cli::exec::environment::Environment;

    #[tokio::test]
    async fn a_proof_that_is_past_starts_no_command() {
        let (mut exec, pipe) = Outgoing::with_inlet().unwrap();
        let mut orders = Incoming::open(pipe.into_raw_fd()).unwrap();
        let grace = Duration::from_secs(5);
        let launch = Launch { kill_after: grace, environment: Environment::default() };
        let later = Moment::now() + Duration::from_secs(60);
        exec.tell(&Order::Start(launch.clone()));
        for until in [Moment::now() - grace, Moment::now() + grace, later] {
            exec.tell(&Order::Valid(until));
        }
        // The second proof leaves no time to end a command.
        assert_eq!(first_proof(&mut orders).await, Some((launch.clone(), later)));
        exec.tell(&Order::Start(launch));
        exec.tell(&Order::Valid(Moment::now()));
        exec.tell(&Order::Ending);
        exec.tell(&Order::Valid(later));
        assert_eq!(first_proof(&mut orders).await, None);
    }
}
