//! `lockkeeper queue put`: puts elements from standard input into the queue. See
//! `stdin` for how they are read.

use std::fmt::Write;
use std::io::stdin;
use std::time::Duration;

use lockkeeper_pressure::{MAX_ELEMENT_BYTES, PutBatchError, Queue, QueueError};
use tokio::time::timeout;

use super::common::{Patience, Tally, code, count, failed, is_closed, stopped_by};
use super::progress::Progress;
use super::stdin::{BATCH_BYTES, Cut, Input, ReadError};
use super::verbs::bound;
use crate::cli::failure::Failure;
use crate::cli::signals::Signals;
use crate::cli::streams::unreadable;
use crate::cli::target::QueueTarget;

/// Arguments of `lockkeeper queue put`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Elements are put as soon as they are read, in batches of at most 1000 elements or 1 MiB. A typed \
line is put when it ends. If put fails before it reaches the end of its input and closes the \
queue, it reports how many elements are certainly in the queue, and how many it has read that are \
not. The same applies after SIGINT and SIGTERM, which leave the queue open.

If standard input is closed, nothing is put and the queue stays open. /dev/null counts as closed if \
it was opened for both reading and writing, as in a container without input; </dev/null opens it for \
reading.")]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Arguments {
    #[command(flatten)]
    which: QueueTarget,

    /// Elements end at a NUL byte instead of the end of a line
    #[arg(short = '0', long, conflicts_with = "size", help_heading = None)]
    null: bool,

    /// Elements are blocks of this size, for example 64K or 1M; the last may be shorter
    #[arg(long, value_name = "BYTES", value_parser = size, help_heading = None)]
    size: Option<usize>,

    /// Create the queue with this bound if it does not exist
    #[arg(long, value_name = "BOUND", value_parser = bound, help_heading = None)]
    create: Option<u64>,

    /// Do not close the queue at the end of the input
    #[arg(long, help_heading = None)]
    keep_open: bool,

    /// Put elements even if the queue is full, which exceeds its bound; for emergencies
    #[arg(long, help_heading = None)]
    overfill: bool,

    #[command(flatten)]
    patience: Patience,

    /// Do not show progress on the terminal
    #[arg(long, short, help_heading = None)]
    quiet: bool,
}

/// Time for pending work to finish after a signal.
const LAST: Duration = Duration::from_secs(2);

/// Parses a number of bytes such as 4096, 64K or 1M.
fn size(text: &str) -> Result<usize, String> {
    let wrong = || "expected a number of bytes such as 4096, 64K or 1M, at most 512M".to_owned();
    let (number, unit) = match text.strip_suffix(['K', 'k']) {
        Some(number) => (number, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |number| (number, 1 << 20)),
    };
    let size = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    size.filter(|size| (1..=MAX_ELEMENT_BYTES).contains(size)).ok_or_else(wrong)
}

/// Reason why no more elements are put.
enum End {
    Input(Result<(), ReadError>),
    Queue(QueueError),
    Signal(nix::sys::signal::Signal),
}

/// State of one run.
struct Putting<'a> {
    arguments: &'a Arguments,
    queue: Queue,
    input: Input,
    progress: Progress,
    put: Tally,
    /// Number of elements that may or may not be in the queue, then of those that are
    /// not.
    unknown: usize,
    left: usize,
}

pub(super) async fn run(arguments: Arguments, mut signals: Signals) -> Result<(), Failure> {
    let cut = match (arguments.null, arguments.size) {
        (true, _) => Cut::At(0),
        (false, Some(size)) => Cut::Every(size),
        (false, None) => Cut::At(b'\n'),
    };
    let input = Input::open(cut).map_err(|error| unreadable(&error))?;
    let queue = tokio::select! {
        queue = prepare(&arguments) => queue?,
        signal = signals.next_to_end() => return Err(stopped_by(signal, "nothing was read")),
    };
    let progress = Progress::new(arguments.quiet, &stdin());
    let mut putting = Putting {
        arguments: &arguments,
        queue,
        input,
        progress,
        put: Tally::default(),
        unknown: 0,
        left: 0,
    };
    let end = putting.flow(&mut signals).await;
    putting.finish(end, &mut signals).await
}

/// Finds the queue and checks that it accepts elements, before any input is read.
async fn prepare(arguments: &Arguments) -> Result<Queue, Failure> {
    if arguments.create.is_some() {
        arguments.which.must_not_be_the_operators()?;
    }
    let queue = arguments.which.find().await?;
    if let Some(bound) = arguments.create {
        match queue.create(bound).await {
            Ok(()) | Err(QueueError::AlreadyExists) => {}
            Err(error) => return Err(failed(&queue, &error)),
        }
    }
    if is_closed(&queue).await? {
        return Err(failed(&queue, &QueueError::Closed));
    }
    Ok(queue)
}

impl Putting<'_> {
    async fn flow(&mut self, signals: &mut Signals) -> End {
        loop {
            // No more than is sent in one request, so that the progress of a put is
            // known.
            let batch = self.input.next_batch(self.queue.put_bytes().min(BATCH_BYTES));
            if !batch.is_empty() {
                if let Err(end) = self.put(&batch, signals).await {
                    return end;
                }
            } else if self.input.has_ended() {
                return End::Input(self.input.outcome());
            } else {
                tokio::select! {
                    () = self.input.read_more() => {}
                    signal = signals.next_to_end() => return End::Signal(signal),
                }
            }
        }
    }

    /// Puts a batch while reading ahead.
    async fn put(&mut self, batch: &[Vec<u8>], signals: &mut Signals) -> Result<(), End> {
        let (queue, wait) = (self.queue.clone(), self.arguments.patience.wait());
        let put = async {
            if self.arguments.overfill {
                queue.put_overfill(batch, wait).await
            } else {
                queue.put_batch(batch, wait).await
            }
        };
        tokio::pin!(put);
        let mut signal = None;
        let result = loop {
            tokio::select! {
                result = &mut put => break Some(result),
                () = self.input.read_more(), if self.input.wants_more() => {}
                by = signals.next_to_end() => {
                    signal = Some(by);
                    self.queue.stop_waiting();
                    break timeout(LAST, &mut put).await.ok();
                }
            }
        };
        let (put, uncertain, error) = match result {
            Some(Ok(())) => (batch.len(), 0, None),
            Some(Err(PutBatchError { put, uncertain, error })) => (put, uncertain, Some(error)),
            None => (0, batch.len(), None),
        };
        let bytes = batch[..put].iter().map(Vec::len).sum();
        self.put.add(put, bytes);
        self.progress.add(put as u64, bytes as u64);
        self.unknown = uncertain;
        self.left = batch.len() - put - uncertain;
        match (signal, error) {
            (Some(signal), _) => Err(End::Signal(signal)),
            (None, Some(error)) => Err(End::Queue(error)),
            (None, None) => Ok(()),
        }
    }

    async fn finish(mut self, end: End, signals: &mut Signals) -> Result<(), Failure> {
        self.input.settle().await;
        match end {
            End::Input(Ok(())) if self.arguments.keep_open => Ok(()),
            End::Input(Ok(())) => self.close(signals).await,
            End::Input(Err(error)) => {
                let code = match &error {
                    ReadError::Io(_) => Failure::CANT_READ,
                    ReadError::TooLong(_) => Failure::DATA,
                };
                Err(Failure::new(code, format!("{error}. {}{}", self.account(), self.open())))
            }
            End::Queue(error) => Err(self.failed(&error)),
            End::Signal(signal) => {
                Err(stopped_by(signal, &format!("{}{}", self.account(), self.open())))
            }
        }
    }

    async fn close(&self, signals: &mut Signals) -> Result<(), Failure> {
        let close = self.queue.close(self.arguments.patience.wait());
        tokio::pin!(close);
        let signal = tokio::select! {
            closed = &mut close => return match closed {
                // Another client may have closed it first.
                Ok(()) | Err(QueueError::Closed) => Ok(()),
                Err(error) => Err(self.failed(&error)),
            },
            signal = signals.next_to_end() => signal,
        };
        self.queue.stop_waiting();
        let open = match timeout(LAST, close).await {
            Ok(Ok(()) | Err(QueueError::Closed)) => return Ok(()),
            Ok(Err(error)) if !error.ends_unknown() => self.open(),
            Ok(Err(_)) | Err(_) => "; the queue may be closed",
        };
        Err(stopped_by(signal, &format!("{}{open}", self.account())))
    }

    fn failed(&self, error: &QueueError) -> Failure {
        let open = match error {
            QueueError::Closed | QueueError::DoesNotExist => "",
            _ => self.open(),
        };
        let text = format!("{}: {error}. {}{open}", self.queue.name(), self.account());
        Failure::new(code(error), text)
    }

    /// Returns a warning if the queue should have been closed but stays open.
    fn open(&self) -> &'static str {
        if self.arguments.keep_open { "" } else { "; the queue was not closed" }
    }

    /// Reports the outcome for all elements that were read.
    fn account(&self) -> String {
        let mut text = format!("{} put", self.put);
        if self.unknown > 0 {
            let _ = write!(text, ", and perhaps up to {} more", self.unknown);
        }
        let (ahead, begun) = self.input.left();
        let left = self.left + ahead;
        if left > 0 || begun {
            let begun = if begun { " and a beginning" } else { "" };
            let left = count(left as u64, "element");
            let _ = write!(text, "; {left}{begun} read and not put");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!((size("64K"), size("1m")), (Ok(65_536), Ok(1_048_576)));
        assert_eq!(size("512M"), Ok(512 << 20));
        for wrong in ["0", "", "K", "-1", "1G", "513M", "99999999999999999999M"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
