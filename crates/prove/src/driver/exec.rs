//! An implementation that is a command which runs another command under the lock, like `flock`.
//! The other command is the prover's witness: the lock is held while the witness runs. See
//! `witness` for the other side, and `process` for implementations that answer requests.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::group::{Control, Environment, Group};
use super::message::{Done, FULL, Line, Request, UNSUPPORTED};
use super::process::{DriverError, Listener, describe, tail};
use super::witness::Found;
use crate::history::{Variables, Verb};

/// Time within which a command must start, in addition to the time limit for acquiring.
const TO_START: Duration = Duration::from_secs(2);

/// Time within which a command must end after SIGTERM.
const TO_STOP: Duration = Duration::from_secs(2);

/// Time within which the witness must end after its command was killed.
const TO_END: Duration = Duration::from_secs(1);

/// `EX_TEMPFAIL`: the exit code of a command that found no free slot.
const TEMPORARY: i32 = 75;

/// Options for running a command.
#[derive(Clone, Debug, Default)]
pub struct ExecOptions {
    /// The command line. Placeholders: `{lock}`, the name of the lock; `{work}`, the command to
    /// run under the lock; `{wait}`, the time limit for acquiring, in seconds.
    pub command: String,
    /// Variables that are added to the environment of this process.
    pub environment: Environment,
    /// The environment variables in which the command describes the grant.
    pub variables: Variables,
    /// This program. Its subcommand `witness` is the witness.
    pub program: PathBuf,
}

/// A command that runs another command under the lock. Each acquisition starts it once.
pub struct Exec {
    options: ExecOptions,
    listener: Listener,
    control: Control,
    held: Option<Held>,
}

impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exec").field("command", &self.options.command).finish_non_exhaustive()
    }
}

/// A command that has started its witness.
struct Held {
    group: Group,
    /// Dropping it ends the witness.
    witness: OwnedWriteHalf,
    /// Whether the hold has ended, so that the end of the witness is not a loss.
    over: Arc<AtomicBool>,
    watch: JoinHandle<()>,
}

impl Exec {
    /// Prepares the command without starting it.
    ///
    /// # Errors
    ///
    /// [`DriverError::Start`] if a placeholder is missing.
    pub fn new(options: ExecOptions, listener: Listener) -> Result<Self, DriverError> {
        for placeholder in ["{lock}", "{work}"] {
            if !options.command.contains(placeholder) {
                let why = format!("the placeholder {placeholder} is missing");
                return Err(DriverError::Start { command: options.command, why });
            }
        }
        Ok(Self { options, listener, control: Control::default(), held: None })
    }

    /// Starts or ends the command. The answer is also passed to the listener.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the command did not run its witness correctly.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the command is killed.
    pub async fn ask(&mut self, request: &Request, limit: Duration) -> Result<Line, DriverError> {
        let wait = request.wait_ms.map(Duration::from_millis);
        let answer = async {
            match request.verb {
                Verb::Acquire => self.acquire(&request.lock, wait.unwrap_or_default()).await,
                Verb::Release => self.release().await,
                _ => Ok(Line::Fail(UNSUPPORTED.to_owned())),
            }
        };
        let Ok(answer) = tokio::time::timeout(limit, answer).await else {
            let request = serde_json::to_string(request).unwrap_or_default();
            return Err(DriverError::NoAnswer { request, limit, stderr: String::new() });
        };
        let answer = answer?;
        // The listener has already received the grant, when the witness connected.
        if !(request.verb == Verb::Acquire && matches!(answer, Line::Ok(_))) {
            (self.listener)(&answer);
        }
        Ok(answer)
    }

    async fn acquire(&mut self, lock: &str, wait: Duration) -> Result<Line, DriverError> {
        if let Some(held) = &self.held {
            if !held.over.load(Ordering::Acquire) {
                return Ok(Line::Fail("this process already holds the lock".to_owned()));
            }
            self.kill().await;
        }
        let failed = |error: io::Error| DriverError::Start {
            command: self.options.command.clone(),
            why: error.to_string(),
        };
        let arrivals = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
        let port = arrivals.local_addr().map_err(failed)?.port();
        let command = self.options.command_line(lock, wait, port);
        let (mut group, _) =
            Group::start(&command, &self.options.environment, false, &self.control)
                .map_err(failed)?;
        tokio::select! {
            arrived = arrivals.accept() => {
                let (stream, _) = arrived.map_err(failed)?;
                self.granted(group, stream).await
            }
            status = group.ended() => ended_early(&mut group, status).await,
            () = tokio::time::sleep(wait + TO_START) => {
                group.control().signal(Signal::SIGTERM);
                let _ = tokio::time::timeout(TO_STOP, group.ended()).await;
                group.kill().await;
                Ok(Line::Fail(FULL.to_owned()))
            }
        }
    }

    /// Reads the witness's description of the grant, and watches the witness from then on.
    async fn granted(&mut self, mut group: Group, stream: TcpStream) -> Result<Line, DriverError> {
        let (from, witness) = stream.into_split();
        let mut from = BufReader::new(from);
        let mut line = String::new();
        let read = (&mut from).take(64 * 1024).read_line(&mut line).await;
        let refused =
            |why: String| DriverError::NotAnAnswer { line: line.trim_end().to_owned(), why };
        let found = serde_json::from_str(&line).map_err(|error| refused(error.to_string()));
        let done = match (read, found) {
            (Ok(1..), Ok(found)) => details(&self.options.variables, &found).map_err(refused)?,
            (Ok(1..), Err(error)) => return Err(error),
            (Ok(0) | Err(_), _) => {
                let status = group.ended().await;
                return ended_early(&mut group, status).await;
            }
        };
        let answer = Line::Ok(done);
        (self.listener)(&answer);
        let over = Arc::new(AtomicBool::new(false));
        let watch = tokio::spawn(watch(from, Arc::clone(&over), Arc::clone(&self.listener)));
        self.held = Some(Held { group, witness, over, watch });
        Ok(answer)
    }

    async fn release(&mut self) -> Result<Line, DriverError> {
        let Some(held) = self.held.take() else {
            return Ok(Line::Fail("this process does not hold the lock".to_owned()));
        };
        let Held { mut group, witness, over, watch } = held;
        let lost = over.swap(true, Ordering::AcqRel);
        drop(witness);
        let status = group.ended().await;
        let _ = watch.await;
        if lost {
            return Ok(Line::Fail("the command had stopped {work} before the release".to_owned()));
        }
        Ok(match status {
            Ok(status) if status.success() => Line::Ok(Done::default()),
            Ok(status) => {
                let stderr = tail(&group.stderr().await);
                Line::Info(format!("the command {}: {stderr}", describe(status)))
            }
            Err(error) => Line::Info(error.to_string()),
        })
    }

    /// Kills the command alone (SIGKILL), and waits until its witness has ended too, but not
    /// longer than `limit`. The end of the witness is passed to the listener as a loss.
    pub async fn kill_alone(&mut self, limit: Duration) {
        let Some(held) = &mut self.held else { return };
        held.group.control().kill_first();
        let _ = tokio::time::timeout(limit, &mut held.watch).await;
    }

    /// Kills the command and its children (SIGKILL), and ends its witness.
    pub async fn kill(&mut self) {
        let Some(held) = self.held.take() else { return };
        let Held { mut group, witness, over, watch } = held;
        over.store(true, Ordering::Release);
        group.kill().await;
        // The witness may be in another process group.
        drop(witness);
        if !watch.is_finished() {
            let _ = tokio::time::timeout(TO_END, watch).await;
        }
    }

    /// Returns a handle that suspends, resumes or kills the command, even while it is starting.
    pub fn control(&self) -> Control {
        self.control.clone()
    }
}

/// Reports the end of the witness as a loss, unless the hold had already ended.
async fn watch(mut from: BufReader<OwnedReadHalf>, over: Arc<AtomicBool>, listener: Listener) {
    let mut rest = [0; 64];
    while let Ok(1..) = from.read(&mut rest).await {}
    if !over.swap(true, Ordering::AcqRel) {
        listener(&Line::Lost("the command stopped {work} while it held the lock".to_owned()));
    }
}

/// Returns the answer to an acquire whose command ended without starting its witness.
async fn ended_early(
    group: &mut Group,
    status: io::Result<ExitStatus>,
) -> Result<Line, DriverError> {
    let how = match status {
        Ok(status) if status.code() == Some(TEMPORARY) => return Ok(Line::Fail(FULL.to_owned())),
        Ok(status) => match status.code() {
            // 126 and 127 are the shell's codes for a command that cannot be run.
            Some(0 | 126 | 127) => format!("{} before it ran {{work}}", describe(status)),
            _ => {
                let stderr = tail(&group.stderr().await);
                return Ok(Line::Fail(format!("the command {}: {stderr}", describe(status))));
            }
        },
        Err(error) => format!("ended ({error})"),
    };
    Err(DriverError::Command { how, stderr: tail(&group.stderr().await) })
}

impl ExecOptions {
    fn command_line(&self, lock: &str, wait: Duration, port: u16) -> String {
        let program = self.program.display().to_string();
        let mut witness = vec![program, "witness".to_owned(), port.to_string()];
        witness.extend(self.variables.options());
        let witness: Vec<String> = witness.iter().map(|word| quoted(word)).collect();
        self.command
            .replace("{lock}", &quoted(lock))
            .replace("{wait}", &wait.as_secs_f64().to_string())
            .replace("{work}", &witness.join(" "))
    }
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Converts the values of the variables to the details of a grant.
fn details(variables: &Variables, found: &Found) -> Result<Done, String> {
    let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    let wrong = |name: &Option<String>, value: &str| {
        format!("{} is {value:?}, not a number", name.as_deref().unwrap_or_default())
    };
    let slot = given(&found.slot)
        .map(|value| value.parse().map_err(|_| wrong(&variables.slot_env, &value)))
        .transpose()?;
    let fence = given(&found.fence)
        .map(|value| value.parse().map_err(|_| wrong(&variables.fence_env, &value)))
        .transpose()?;
    Ok(Done { slot, fence, token: given(&found.token), ..Done::default() })
}

#[cfg(test)]
mod tests;
