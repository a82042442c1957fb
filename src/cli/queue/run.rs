//! `lockkeeper queue run`: runs a command for each element, several at a time. See `job`
//! for one command and its element.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::stdout;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use lockkeeper_net::clock::Moment;
use lockkeeper_pressure::{Delivery, Queue, QueueError};
use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::common::{Patience, count, failed, is_closed, lease, stopped_by};
use super::job::{Done, Task};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::processes::{Descendants, Ending};
use crate::cli::signals::Signals;
use crate::cli::streams::has_no_reader;
use crate::cli::target::QueueTarget;

/// Time for the rest of a command to end after its first process was ended by a signal.
const REST: Duration = Duration::from_secs(5);

/// Arguments of `lockkeeper queue run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command reads the element from its standard input, without a newline after it. Its environment has QUEUE_NAME and \
QUEUE_DELIVERIES, the number of attempts with the element, this one included. If it ends with 0, the \
element is removed. Otherwise it returns to the queue, after 1 s and at most 1 min, and is then \
delivered before younger elements.

Each element is in flight while its command runs. If run dies, other clients of Lockkeeper get the \
element after --lease. So an element is processed at least once, and twice if run dies between the \
end of its command and the acknowledgement.

With --attempts and --dead-letter, an element whose command failed this often is moved to another \
queue, which must exist. An attempt counts if the command was started and ended by itself, or if run \
died with it. It does not count if the command can't be started, or is ended by a signal that run \
forwarded. If run moved an element and nothing else failed, it exits with 85.

run ends when the queue is closed and no element is left or in flight. After the first signal it takes \
no more elements and waits for the commands; a second one is forwarded to all of their processes, and a \
third one kills these. Their elements return to the queue. What is left 5 s after the commands have ended \
by a signal is killed. Commands that run when run itself is killed with SIGKILL continue.")]
pub struct Arguments {
    #[command(flatten)]
    which: QueueTarget,

    /// Maximum number of commands that run at a time
    #[arg(long, short, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), help_heading = None)]
    concurrency: u16,

    /// Move an element to the queue --dead-letter after this number of attempts
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), requires = "dead_letter", help_heading = None)]
    attempts: Option<u64>,

    /// Queue for elements whose command fails. A plain name is in the same database, with
    /// the same prefix, also if QUEUE is pq/NAME
    #[arg(long, value_name = "QUEUE", requires = "attempts", help_heading = None)]
    dead_letter: Option<String>,

    /// Time after which other clients get the elements of a run that died; renewed while it
    /// lives. At least 1s
    #[arg(long, value_name = "DURATION", value_parser = lease, default_value = "30s", help_heading = None)]
    lease: Duration,

    #[command(flatten)]
    patience: Patience,

    /// Command and its arguments; they are not interpreted by a shell
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None)]
    command: Vec<OsString>,
}

/// Reason why no more elements are taken.
enum End {
    /// The queue is closed, and nothing is left or in flight.
    Finished,
    Queue(QueueError),
    /// A command can't be started, or its element can't be acknowledged.
    Job(Failure),
    Signal(Signal),
}

/// State of one run.
struct Running<'a> {
    arguments: &'a Arguments,
    task: Arc<Task>,
    jobs: JoinSet<Result<Done, Failure>>,
    getting: Option<BoxFuture<'static, Result<Delivery, QueueError>>>,
    forwarded: watch::Sender<Option<Signal>>,
    /// The processes of all commands.
    commands: Descendants,
    /// Number of elements with each outcome.
    processed: u64,
    returned: u64,
    dead: u64,
}

pub(super) async fn run(arguments: Arguments, mut signals: Signals) -> Result<(), Failure> {
    let (queue, dead_letters) = tokio::select! {
        found = prepare(&arguments) => found?,
        signal = signals.next_to_end() => return Err(stopped_by(signal, "nothing was taken")),
    };
    let commands = Descendants::adopt().map_err(|error| {
        Failure::new(Failure::UNAVAILABLE, format!("commands can't be supervised: {error}"))
    })?;
    let awaited = commands.awaited().clone();
    let orphans = awaited.clone();
    tokio::spawn(async move { orphans.reap_others().await });
    let (forwarded, forward) = watch::channel(None);
    let command = arguments.command.clone();
    let task = Task { queue, command, dead_letters, signals: forward, awaited };
    let mut running = Running {
        arguments: &arguments,
        task: Arc::new(task),
        jobs: JoinSet::new(),
        getting: None,
        forwarded,
        commands,
        processed: 0,
        returned: 0,
        dead: 0,
    };
    let end = running.until_it_ends(&mut signals).await;
    // An element that arrives now returns to the queue.
    running.getting = None;
    running.task.queue.stop_waiting();
    let end = running.finish_jobs(end, &mut signals).await;
    running.outcome(end)
}

/// Finds the queue and the one for dead letters, and checks that both exist.
async fn prepare(arguments: &Arguments) -> Result<(Queue, Option<(Queue, u64)>), Failure> {
    let queue = arguments.which.find_with(|options| options.with_lease(arguments.lease)).await?;
    is_closed(&queue).await?;
    let (Some(name), Some(attempts)) = (&arguments.dead_letter, arguments.attempts) else {
        return Ok((queue, None));
    };
    let letters = arguments.which.find_sibling(name, &queue).await?;
    if letters.is_same(&queue) {
        let message = "--dead-letter must be another queue: its elements would come again";
        return Err(Failure::new(Failure::USAGE, message));
    }
    if is_closed(&letters).await? {
        return Err(failed(&letters, &QueueError::Closed));
    }
    Ok((queue, Some((letters, attempts))))
}

impl Running<'_> {
    /// Takes elements and starts their commands.
    async fn until_it_ends(&mut self, signals: &mut Signals) -> End {
        loop {
            let has_room = self.jobs.len() < usize::from(self.arguments.concurrency);
            if has_room && self.getting.is_none() {
                let (queue, wait) = (self.task.queue.clone(), self.arguments.patience.wait());
                self.getting = Some(async move { queue.get_acked(wait).await }.boxed());
            }
            let got = async {
                match &mut self.getting {
                    Some(getting) => getting.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                got = got => {
                    self.getting = None;
                    match got {
                        Ok(delivery) => drop(self.jobs.spawn(Arc::clone(&self.task).process(delivery))),
                        Err(QueueError::Closed) => return End::Finished,
                        // A command that runs may give its element back.
                        Err(QueueError::Empty | QueueError::TimedOut { .. }) if !self.jobs.is_empty() => {
                            if let Some(end) = self.next_job(signals).await {
                                return end;
                            }
                        }
                        Err(error) => return End::Queue(error),
                    }
                }
                Some(done) = self.jobs.join_next() => {
                    if let Err(failure) = self.note(done) {
                        return End::Job(failure);
                    }
                }
                signal = signals.next_to_end() => return End::Signal(signal),
            }
        }
    }

    /// Waits for the end of a command. Returns why no more elements are to be taken.
    async fn next_job(&mut self, signals: &mut Signals) -> Option<End> {
        tokio::select! {
            Some(done) = self.jobs.join_next() => self.note(done).err().map(End::Job),
            signal = signals.next_to_end() => Some(End::Signal(signal)),
            else => None,
        }
    }

    /// Waits for the commands that run. Further signals end them.
    async fn finish_jobs(&mut self, mut end: End, signals: &mut Signals) -> End {
        if matches!(end, End::Signal(_)) && !self.jobs.is_empty() {
            let running = count(self.jobs.len() as u64, "command");
            say(format!("waiting for {running}; another signal is forwarded, a third one kills"));
        }
        while !self.jobs.is_empty() {
            match self.next_job(signals).await {
                Some(End::Signal(signal)) => {
                    let is_second = self.forwarded.borrow().is_none();
                    let signal = if is_second { signal } else { Signal::SIGKILL };
                    // Before the signal: a command that it ends has not failed.
                    self.forwarded.send_replace(Some(signal));
                    if is_second { self.commands.pass_on(signal) } else { self.commands.kill() }
                }
                // The first one is reported.
                Some(other) if matches!(end, End::Finished | End::Signal(_)) => end = other,
                Some(_) | None => {}
            }
        }
        self.end_the_rest().await;
        end
    }

    /// Ends the rest of commands that a signal has ended. Processes that commands leave behind at
    /// their own end run on.
    async fn end_the_rest(&self) {
        if self.commands.are_gone() {
            return;
        }
        let is_ended = self.forwarded.borrow().is_some()
            && Ending::killing_at(Moment::now() + REST).finish(&self.commands).await;
        if !is_ended {
            say(format!("processes of the commands run on: {}", self.commands.names()));
        }
    }

    fn note(
        &mut self,
        done: Result<Result<Done, Failure>, tokio::task::JoinError>,
    ) -> Result<(), Failure> {
        let done = done.map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
        let done = done?;
        match done {
            Done::Processed => self.processed += 1,
            Done::Returned => self.returned += 1,
            Done::Dead => self.dead += 1,
        }
        // Otherwise the next commands would die of SIGPIPE as well.
        if done != Done::Processed && has_no_reader(stdout()).unwrap_or(false) {
            let message = "the reader closed the output: no more elements are taken";
            return Err(Failure::new(Failure::NO_READER, message));
        }
        Ok(())
    }

    /// Returns the result of the run. Dead letters are reported in any case.
    fn outcome(&self, end: End) -> Result<(), Failure> {
        let summary = || format!("{}: {}", self.task.queue.name(), self.summary());
        let failure = match end {
            End::Signal(signal) => return Err(stopped_by(signal, &self.summary())),
            End::Finished | End::Queue(QueueError::Empty | QueueError::TimedOut { .. })
                if self.dead > 0 =>
            {
                return Err(Failure::new(Failure::DEAD_LETTERS, summary()));
            }
            End::Finished => return Ok(()),
            End::Queue(error) => failed(&self.task.queue, &error),
            End::Job(failure) => failure,
        };
        if self.dead > 0 {
            say(summary());
        }
        Err(failure)
    }

    /// Describes what became of the elements.
    fn summary(&self) -> String {
        let mut summary = format!("{} processed", count(self.processed, "element"));
        for (number, what) in [(self.returned, "returned"), (self.dead, "moved as dead letters")] {
            if number > 0 {
                let _ = write!(summary, "; {number} {what}");
            }
        }
        summary
    }
}
