//! `lockkeeper queue get`: writes elements from the queue to standard output. See
//! `stdout` for how they are written, and `return_elements` for elements that were taken but
//! could not be written.

use std::io::{self, PipeReader, PipeWriter, stdout};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_pressure::{Limit, Queue, QueueError, QueueOptions, TakenRoles};
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::common::{Patience, code, failed, is_closed, lease, stopped_by};
use super::progress::Progress;
use super::return_elements::{Batch, Unwritten};
use super::stdin::{BATCH_BYTES, BATCH_ELEMENTS};
use super::stdout::{Ended, Outlet};
use crate::cli::common::say;
use crate::cli::failure::Failure;
use crate::cli::signals::Signals;
use crate::cli::streams::unwritable;
use crate::cli::target::QueueTarget;

/// Arguments of `lockkeeper queue get`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Elements are taken in batches of at most 1000 elements or 1 MiB, and in smaller batches over a \
slow network. Elements that were taken but can't be written (the reader closed the output, the \
disk is full, SIGINT, SIGTERM) are returned to the front of the queue. If another consumer has \
taken elements since, they are saved in a file instead, and the error message contains its name. \
After the first signal, get waits for a pending response of the server; a second signal ends that \
wait. It also waits for such a response beyond --timeout while the connection is open, because the \
response may contain elements. Elements that were taken but not written are lost if get is killed \
with SIGKILL, and those in a response if the connection breaks before it arrives.

If standard output is closed, nothing is taken. /dev/null counts as closed if it was opened for both \
reading and writing; >/dev/null opens it for writing.

The first 1000 elements are written to a pipe one by one, each after the previous one was read: \
`get QUEUE | head -n 3` takes three elements and leaves the rest in the queue. After that, \
elements that the reader leaves in the pipe are returned too, but elements that it has read and \
not used are lost. --count is exact for every number. If other processes write to the same pipe, an \
element whose bytes equal theirs may be returned although it was read.

With --ack, each batch is acknowledged once the reader has taken all of it out of the pipe, and only \
then the next one is taken. Nothing is lost if get is killed: its elements are returned by the next \
get of Lockkeeper after --lease, before younger ones. Those that were read but not yet acknowledged \
are then delivered twice.")]
pub struct Arguments {
    #[command(flatten)]
    which: QueueTarget,

    #[command(flatten)]
    separated: Separated,

    /// Exit after this number of elements [default: exit when the queue is closed and
    /// empty]
    #[arg(long, short, value_name = "NUMBER", help_heading = None)]
    count: Option<u64>,

    /// Delete the queue once it is closed and empty
    #[arg(long, help_heading = None)]
    delete: bool,

    /// Keep elements in flight until the reader of the output has taken them out of the
    /// pipe. If get dies before, another get of Lockkeeper returns them again
    #[arg(long, help_heading = None)]
    ack: bool,

    /// With --ack: time after which another get returns the elements of a get that died;
    /// renewed while it lives. At least 1s [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = lease, requires = "ack", help_heading = None)]
    lease: Option<Duration>,

    #[command(flatten)]
    patience: Patience,

    /// Do not show progress on the terminal
    #[arg(long, short, help_heading = None)]
    quiet: bool,
}

/// Separator of elements.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Separated {
    /// Write a NUL byte after each element instead of a newline
    #[arg(short = '0', long, conflicts_with = "raw", help_heading = None)]
    null: bool,

    /// Write nothing after each element; `put --size 64K` and `get --raw` reproduce the
    /// same bytes
    #[arg(long, help_heading = None)]
    raw: bool,
}

impl Separated {
    pub fn by(&self) -> &'static [u8] {
        match (self.null, self.raw) {
            (true, _) => b"\0",
            (false, true) => b"",
            (false, false) => b"\n",
        }
    }
}

/// Time for a pending write to finish before the process ends.
const LAST: Duration = Duration::from_secs(2);

/// A pending response of the server is awaited at the end until the server has been
/// silent for this time.
const SILENCE: Duration = Duration::from_secs(5);

/// After this time without an element, the reader of the output is watched too.
const IDLE: Duration = Duration::from_millis(100);

/// Reason why no more elements are taken.
pub(super) enum End {
    /// The queue is closed and empty.
    Empty,
    /// The requested number of elements was reached.
    Enough,
    Queue(QueueError),
    Output(Ended),
    Signal(Signal),
}

/// State of one run.
struct Getting<'a> {
    arguments: &'a Arguments,
    queue: Queue,
    outlet: Arc<Mutex<Outlet>>,
    is_pipe: bool,
    progress: Progress,
    unwritten: Unwritten,
    /// Maximum size of the next batch: small at first, in case only few elements are
    /// needed.
    most: usize,
}

pub(super) async fn run(arguments: Arguments, mut signals: Signals) -> Result<(), Failure> {
    let outlet = Outlet::new(arguments.ack).map_err(|error| unwritable(&error, ""))?;
    let queue = tokio::select! {
        queue = prepare(&arguments) => queue?,
        signal = signals.next_to_end() => return Err(stopped_by(signal, "nothing was taken")),
    };
    let mut getting = Getting {
        progress: Progress::new(arguments.quiet, &stdout()),
        unwritten: Unwritten::new(arguments.separated.by().len()),
        is_pipe: outlet.is_pipe(),
        outlet: Arc::new(Mutex::new(outlet)),
        arguments: &arguments,
        queue,
        most: 1,
    };
    let end = match getting.flow(&mut signals).await {
        end @ (End::Empty | End::Enough | End::Queue(_)) => {
            getting.last_read(&mut signals).await.err().unwrap_or(end)
        }
        end => end,
    };
    getting.finish(end, &mut signals).await
}

/// Finds the queue and checks that it exists.
async fn prepare(arguments: &Arguments) -> Result<Queue, Failure> {
    let adapt = |options: QueueOptions| match (arguments.ack, arguments.lease) {
        (true, Some(lease)) => options.with_lease(lease),
        (true, None) => options,
        // They would be lost with an answer that comes after this process has ended.
        (false, _) => options.with_answer_silence(None),
    };
    let queue = arguments.which.find_with(adapt).await?;
    is_closed(&queue).await?;
    Ok(queue)
}

impl Getting<'_> {
    async fn flow(&mut self, signals: &mut Signals) -> End {
        let mut wanted = self.arguments.count.unwrap_or(u64::MAX);
        while wanted > 0 {
            let most = self.most.min(usize::try_from(wanted).unwrap_or(usize::MAX));
            let limit = Limit { elements: most, bytes: BATCH_BYTES };
            let batch = match self.take(limit, signals).await {
                Ok(batch) => batch,
                Err(end) => return end,
            };
            wanted -= batch.taken.len() as u64;
            self.most = (self.most * 2).min(BATCH_ELEMENTS);
            if let Err(end) = self.write(batch, signals).await {
                return end;
            }
        }
        End::Enough
    }

    /// Takes elements. If the process has to end, taken elements are in `unwritten`.
    async fn take(&mut self, limit: Limit, signals: &mut Signals) -> Result<Batch, End> {
        let queue = self.queue.clone();
        let (wait, ack) = (self.arguments.patience.wait(), self.arguments.ack);
        let get = async {
            if ack {
                queue.get_acked_batch(limit, wait).await.map(Batch::in_flight)
            } else {
                queue.get_batch(limit, wait).await.map(Batch::from)
            }
        };
        tokio::pin!(get);
        let end = tokio::select! {
            taken = &mut get => {
                return taken.map_err(|error| match error {
                    QueueError::Closed => End::Empty,
                    error => End::Queue(error),
                });
            }
            ended = self.nobody_reads() => End::Output(ended),
            signal = signals.next_to_end() => End::Signal(signal),
        };
        queue.stop_waiting();
        let last = tokio::select! {
            taken = get => Some(taken),
            () = queue.silence(SILENCE) => None,
            _ = signals.next_to_end() => None,
        };
        match last {
            Some(Ok(batch)) => self.unwritten.add(batch),
            Some(Err(error)) if ack || !error.ends_unknown() => {}
            // The end of their leases returns them.
            None if ack => {}
            Some(Err(_)) | None => self.unwritten.may_have_lost(limit.elements),
        }
        Err(end)
    }

    async fn write(&mut self, batch: Batch, signals: &mut Signals) -> Result<(), End> {
        let taken = Arc::clone(&batch.taken);
        self.unwritten.add(batch);
        let (count, bytes) = (taken.len(), taken.iter().map(<[u8]>::len).sum::<usize>());
        let separator = self.arguments.separated.by();
        let written =
            self.in_thread(move |outlet, stop| outlet.write(taken.iter(), separator, stop));
        self.await_thread(written, signals).await?;
        self.progress.add(count as u64, bytes as u64);
        if self.arguments.ack {
            self.last_read(signals).await?;
            let acked = self.queue.ack_all(self.unwritten.forget_all()).await;
            return match acked {
                Err(QueueError::LeaseEnded) => {
                    say(
                        "the lease of an element has ended before it was read: it may be delivered again",
                    );
                    Ok(())
                }
                acked => acked.map_err(End::Queue),
            };
        }
        let (written, capacity) = {
            let outlet = lock(&self.outlet);
            (outlet.written(), outlet.capacity())
        };
        self.unwritten.forget_what_was_read(written, capacity);
        Ok(())
    }

    /// Waits until the last written element is read, if the output allows to detect that.
    async fn last_read(&mut self, signals: &mut Signals) -> Result<(), End> {
        let drained = self.in_thread(|outlet, stop| outlet.drain(stop));
        self.await_thread(drained, signals).await
    }

    /// Returns when the output is known to have no reader any more.
    async fn nobody_reads(&self) -> Ended {
        sleep(IDLE).await;
        if self.is_pipe
            && let Ok((_stop, watch)) =
                self.in_thread(|outlet, stop| outlet.until_nobody_reads(stop))
            && let Ok(ended @ Ended::NoReader) = watch.await
        {
            return ended;
        }
        std::future::pending().await
    }

    /// Runs an operation on the output that may block, until it is done or the returned
    /// pipe is dropped.
    fn in_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Outlet, &PipeReader) -> T + Send + 'static,
    ) -> io::Result<(PipeWriter, JoinHandle<T>)> {
        let (stop, stopper) = io::pipe()?;
        let outlet = Arc::clone(&self.outlet);
        Ok((stopper, tokio::task::spawn_blocking(move || work(&mut lock(&outlet), &stop))))
    }

    async fn await_thread(
        &self,
        started: io::Result<(PipeWriter, JoinHandle<Result<(), Ended>>)>,
        signals: &mut Signals,
    ) -> Result<(), End> {
        let (stopper, mut work) = started.map_err(|error| End::Output(Ended::Failed(error)))?;
        let end = tokio::select! {
            done = &mut work => {
                let done = done.unwrap_or_else(|error| Err(Ended::Failed(io::Error::other(error))));
                return done.map_err(End::Output);
            }
            signal = signals.next_to_end() => End::Signal(signal),
        };
        drop(stopper);
        // A write to a stopped terminal neither completes nor can be cancelled.
        let _ = timeout(LAST, work).await;
        Err(end)
    }

    /// Returns how many bytes were written, and how many of these will never be read, or
    /// with --ack perhaps not. The first is unknown if a write can't be stopped.
    async fn arrived(&self, nobody_reads: bool) -> (Option<u64>, u64) {
        let (outlet, ack) = (Arc::clone(&self.outlet), self.arguments.ack);
        let ask = tokio::task::spawn_blocking(move || {
            let outlet = lock(&outlet);
            let unread = match (nobody_reads, ack) {
                (true, _) => outlet.unread(),
                (false, true) => outlet.perhaps_unread(),
                (false, false) => 0,
            };
            (outlet.written(), unread)
        });
        match timeout(LAST, ask).await {
            Ok(Ok((written, unread))) => (Some(written), unread),
            Ok(Err(_)) | Err(_) => (None, 0),
        }
    }

    async fn finish(mut self, end: End, signals: &mut Signals) -> Result<(), Failure> {
        if let End::Queue(error) = &end
            && error.ends_unknown()
            && !self.arguments.ack
        {
            self.unwritten.may_have_lost(self.most);
        }
        let nobody_reads = matches!(end, End::Output(Ended::NoReader));
        let (written, unread) = self.arrived(nobody_reads).await;
        drop(self.progress);
        let outcome =
            self.unwritten.give_back((&self.queue, &self.arguments.which), written, unread).await;
        let then = format!(". {outcome}");
        let name = self.queue.name();
        match end {
            End::Empty if self.arguments.delete => {
                let deleted = tokio::select! {
                    deleted = self.queue.remove(self.arguments.patience.wait(), TakenRoles::Wait) => deleted,
                    signal = signals.next_to_end() => return Err(stopped_by(signal, "the queue is being deleted")),
                };
                match deleted {
                    // Another client deleted it first.
                    Ok(_) | Err(QueueError::DoesNotExist) => Ok(()),
                    Err(error) => Err(failed(&self.queue, &error)),
                }
            }
            End::Empty | End::Enough => Ok(()),
            End::Queue(error) => Err(Failure::new(code(&error), format!("{name}: {error}{then}"))),
            End::Output(Ended::NoReader) if outcome.is_good() => {
                Err(Failure::silent(Failure::NO_READER))
            }
            End::Output(Ended::NoReader | Ended::Stopped) => {
                Err(Failure::new(Failure::NO_READER, format!("the reader closed the output{then}")))
            }
            End::Output(Ended::Failed(error)) => Err(unwritable(&error, &then)),
            End::Signal(signal) => Err(stopped_by(signal, &outcome.to_string())),
        }
    }
}

fn lock(outlet: &Mutex<Outlet>) -> std::sync::MutexGuard<'_, Outlet> {
    outlet.lock().unwrap_or_else(PoisonError::into_inner)
}
