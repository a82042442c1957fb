//! Runs a driver: a child process that answers one request at a time, in JSON lines. See
//! `message` for the lines, and `speak` for a check of a new driver.

use std::fmt;
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;

use super::group::{Control, Environment, Group};
use super::message::{Line, Request};

/// Maximum length of a line from a driver, in bytes.
const MAX_LINE: usize = 64 * 1024;

/// Maximum number of characters of a line, and of stderr, that an error contains.
const SHOWN: usize = 300;

/// Time within which a driver that closed its stdout must end.
const TO_END: Duration = Duration::from_secs(1);

/// Called with each line that an implementation writes: answers, and notifications that the slot
/// was lost. It is called when the line is read, in the order in which lines were written.
pub type Listener = Arc<dyn Fn(&Line) + Send + Sync>;

/// Error that prevents a driver from answering. The driver cannot be used afterwards; kill it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The command could not be started.
    #[error("the command {command:?} could not be started ({why}). Check that `sh` can run it")]
    Start {
        /// The command.
        command: String,
        /// The operating system's error.
        why: String,
    },
    /// A line is not a valid answer.
    #[error(
        "the driver wrote an invalid answer ({why}): {line:?}. Write one JSON object per line to stdout, and everything else to stderr"
    )]
    NotAnAnswer {
        /// The line, truncated.
        line: String,
        /// Why it is invalid.
        why: String,
    },
    /// An answer without a request.
    #[error(
        "the driver wrote an answer without a request: {line:?}. Write exactly one answer for each request"
    )]
    Unrequested {
        /// The line, truncated.
        line: String,
    },
    /// The process ended, or closed its stdout or stdin.
    #[error(
        "the driver {how}{}. It must answer requests until its stdin ends",
        stderr_suffix(stderr)
    )]
    Ended {
        /// The end of the process, for example `ended with exit code 3`.
        how: String,
        /// The last part of its stderr, truncated.
        stderr: String,
    },
    /// No answer within the time limit.
    #[error(
        "the driver did not answer `{request}` within {limit:?}{}. Check that it reads stdin line by line and flushes stdout after each answer",
        stderr_suffix(stderr)
    )]
    NoAnswer {
        /// The request.
        request: String,
        /// The time limit.
        limit: Duration,
        /// The last part of its stderr so far, truncated.
        stderr: String,
    },
    /// The command of `--exec` did not run its witness correctly.
    #[error(
        "the command {how}{}. It must run {{work}} while it holds the lock",
        stderr_suffix(stderr)
    )]
    Command {
        /// The wrong behaviour, for example `ended with exit code 0 before it ran {work}`.
        how: String,
        /// The last part of its stderr, truncated.
        stderr: String,
    },
    /// The caller dropped the previous request before it was answered.
    #[error("the previous request was cancelled before its answer. Start the driver again")]
    Abandoned,
}

fn stderr_suffix(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; its stderr ends with: {stderr}") }
}

/// Returns the last characters of a text.
pub(super) fn tail(text: &str) -> String {
    let from = text.char_indices().rev().nth(SHOWN - 1).map_or(0, |(index, _)| index);
    let mark = if from > 0 { "…" } else { "" };
    format!("{mark}{}", &text[from..])
}

/// Returns the first characters of a text.
fn head(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A running driver. Dropping it kills the process.
pub struct Driver {
    group: Group,
    stdin: ChildStdin,
    answers: mpsc::UnboundedReceiver<Result<Line, DriverError>>,
    /// Whether a request was sent whose answer has not been read yet.
    pending: Arc<AtomicBool>,
    failed: Option<DriverError>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Driver {
    /// Starts `command` with a shell. `environment` is added to the environment of this process,
    /// and contains the URL of the broker in `AMQP_URL`.
    ///
    /// # Errors
    ///
    /// [`DriverError::Start`] if the command cannot be started.
    pub fn start(
        command: &str,
        environment: &Environment,
        listener: Listener,
    ) -> Result<Self, DriverError> {
        let failed = |why: String| DriverError::Start { command: command.to_owned(), why };
        let (group, ends) = Group::start(command, environment, true, &Control::default())
            .map_err(|error: io::Error| failed(error.to_string()))?;
        let (stdin, stdout) = ends.ok_or_else(|| failed("it has no pipes".to_owned()))?;
        let (sender, answers) = mpsc::unbounded_channel();
        let pending = Arc::new(AtomicBool::new(false));
        tokio::spawn(read(stdout, listener, Arc::clone(&pending), sender));
        Ok(Self { group, stdin, answers, pending, failed: None })
    }

    /// Sends one request and waits for its answer. The listener is called with the answer before
    /// this returns.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if there is no valid answer. Every later call returns the same error.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, every later call fails.
    pub async fn ask(&mut self, request: &Request, limit: Duration) -> Result<Line, DriverError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        // The value at the end of this call replaces it.
        self.failed = Some(DriverError::Abandoned);
        let asked = tokio::time::timeout(limit, self.exchange(request)).await;
        let answer = match asked {
            Ok(answer) => answer,
            Err(_) => {
                let stderr = tail(&self.group.stderr().await);
                let request = serde_json::to_string(request).unwrap_or_default();
                Err(DriverError::NoAnswer { request, limit, stderr })
            }
        };
        self.failed = answer.as_ref().err().cloned();
        answer
    }

    async fn exchange(&mut self, request: &Request) -> Result<Line, DriverError> {
        // A line that is already available was written before the request.
        match self.answers.try_recv() {
            Ok(Err(error)) => return Err(error),
            Ok(Ok(line)) => {
                let line = head(&serde_json::to_string(&line).unwrap_or_default());
                return Err(DriverError::Unrequested { line });
            }
            Err(mpsc::error::TryRecvError::Disconnected) => return Err(self.end().await),
            Err(mpsc::error::TryRecvError::Empty) => {}
        }
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        self.pending.store(true, Ordering::Release);
        let sent = async {
            self.stdin.write_all(&line).await?;
            self.stdin.flush().await
        };
        if sent.await.is_err() {
            // The reader may have found the reason on stdout.
            if let Ok(Err(error)) = self.answers.try_recv() {
                return Err(error);
            }
            return Err(self.end().await);
        }
        match self.answers.recv().await {
            Some(answer) => answer,
            None => Err(self.end().await),
        }
    }

    /// Returns the error for a driver that closed its stdin or stdout.
    async fn end(&mut self) -> DriverError {
        let how = match tokio::time::timeout(TO_END, self.group.ended()).await {
            Ok(Ok(status)) => describe(status),
            Ok(Err(error)) => format!("ended ({error})"),
            Err(_) => {
                self.group.kill().await;
                "closed its stdin or stdout and kept running".to_owned()
            }
        };
        DriverError::Ended { how, stderr: tail(&self.group.stderr().await) }
    }

    /// Kills the driver and its children (SIGKILL). Waits for their end and for the end of the
    /// output.
    pub async fn kill(&mut self) {
        self.group.kill().await;
        self.failed.get_or_insert_with(|| DriverError::Ended {
            how: "was killed by the prover".to_owned(),
            stderr: String::new(),
        });
        // The reader ends when the last process of the group has ended.
        let drained = async { while self.answers.recv().await.is_some() {} };
        let _ = tokio::time::timeout(TO_END, drained).await;
    }

    /// Returns a handle that suspends, resumes or kills the driver and its children, even while
    /// a request is unanswered.
    pub fn control(&self) -> Control {
        self.group.control()
    }

    /// Waits until the driver ends by itself. Cancel safe.
    pub async fn ended(&mut self) -> Option<ExitStatus> {
        self.group.ended().await.ok()
    }

    /// Returns the last part of the driver's stderr.
    pub async fn stderr(&mut self) -> String {
        self.group.stderr().await
    }
}

/// Describes an exit status as the predicate of a sentence.
pub(super) fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("ended with exit code {code}"),
        None => format!("ended ({status})"),
    }
}

/// Reads lines until the end of the output or the first error.
async fn read(
    from: ChildStdout,
    listener: Listener,
    pending: Arc<AtomicBool>,
    to: mpsc::UnboundedSender<Result<Line, DriverError>>,
) {
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let limit = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
        match (&mut from).take(limit).read_until(b'\n', &mut bytes).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let line = parse(&bytes);
        if let Ok(line) = &line {
            listener(line);
            if matches!(line, Line::Lost(_)) {
                continue;
            }
        }
        let unrequested = !pending.swap(false, Ordering::AcqRel) && line.is_ok();
        let answer =
            if unrequested { Err(DriverError::Unrequested { line: shown(&bytes) }) } else { line };
        let failed = answer.is_err();
        if to.send(answer).is_err() || failed {
            break;
        }
    }
    // Discards the rest of the output, so that the driver does not block on a full pipe.
    let mut rest = [0; 4096];
    while let Ok(1..) = from.read(&mut rest).await {}
}

fn shown(bytes: &[u8]) -> String {
    head(String::from_utf8_lossy(bytes).trim_end())
}

/// Parses one line of a driver.
fn parse(bytes: &[u8]) -> Result<Line, DriverError> {
    let refused = |why: String| DriverError::NotAnAnswer { line: shown(bytes), why };
    if bytes.len() >= MAX_LINE {
        return Err(refused(format!("it is longer than {MAX_LINE} bytes")));
    }
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| refused(format!("not JSON: {error}")))?;
    serde_json::from_value(value).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests;
