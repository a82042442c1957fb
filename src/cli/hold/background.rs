//! The process that holds a lock in the background: its state file, its sockets, and its
//! detachment from the process that started it. See `launch` for that one, and `verify` and
//! `release` in `cli` for the requests.

use std::convert::Infallible;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Std;
use std::path::Path;

use lockkeeper_semaphore::Permit;
use nix::fcntl::OFlag;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::cli::asking::Socket;
use crate::cli::failure::Failure;
use crate::cli::shell::quoted;
use crate::cli::state_file::{LOST, RELEASED, Record, State, StateFile, release_socket};
use crate::cli::target::FoundLock;

/// Sent to the background process after its lock was reported as held, and back when that has
/// left the streams.
pub(super) const GO_ON: &[u8] = b"\n";

/// The hold of this process, which is in the background.
pub(super) struct Background {
    file: StateFile,
    questions: Socket,
    releases: Socket,
    /// The process in the foreground. `None` after the detachment.
    foreground: Option<UnixStream>,
}

impl Background {
    /// Creates the state file and the sockets, before the lock is acquired.
    pub fn prepare(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let message = format!("a hold in the background can't be prepared: {error}");
            Failure::new(Failure::UNAVAILABLE, message)
        };
        let foreground = take_stdout().map_err(failed)?;
        let questions = Socket::listen().map_err(failed)?;
        let releases = Socket::bind(release_socket(questions.name())).map_err(failed)?;
        let file = StateFile::create(path, questions.name())?;
        Ok(Self { file, questions, releases, foreground: Some(foreground) })
    }

    /// Waits for the end of the process in the foreground. Cancel safe.
    pub async fn left_alone(&mut self) {
        match &mut self.foreground {
            // It sends nothing before it knows that the lock is held.
            Some(foreground) => drop(foreground.read(&mut [0]).await),
            None => std::future::pending().await,
        }
    }

    /// Reports the held lock to the foreground, and leaves it.
    ///
    /// # Errors
    ///
    /// The state file can't be written, or the process in the foreground has ended.
    pub async fn announce(
        &mut self,
        what: &str,
        found: &FoundLock,
        permit: &Permit,
        identity: Option<String>,
    ) -> Result<(), Failure> {
        // Fails if the process leads a session already.
        let _ = setsid();
        let held = |record: &mut Record| record.hold(found, permit, identity);
        self.file.update(held).map_err(|error| {
            let path = quoted(self.file.path());
            Failure::new(Failure::CANT_CREATE, format!("--state {path} can't be written: {error}"))
        })?;
        let Some(mut foreground) = self.foreground.take() else { return Ok(()) };
        let told = foreground.write_all(format!("holding {what}\n").as_bytes()).await;
        let mut answer = [0];
        // It has ended, or could not report the lock.
        if told.is_err() || !matches!(foreground.read(&mut answer).await, Ok(1)) {
            return Err(Failure::silent(Failure::NOT_ACQUIRED));
        }
        leave_streams().map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
        // If that process is killed now, its pipeline has the file.
        let _ = foreground.write_all(GO_ON).await;
        Ok(())
    }

    /// Records a change of the lock. Without the file, only questions are answered.
    pub fn note(&self, state: State, reason: &str) {
        let change = |record: &mut Record| {
            record.state = state;
            record.reason = Some(reason.to_owned());
        };
        if let Err(error) = self.file.update(change) {
            tracing::debug!(%error, "the state file can't be written");
        }
    }

    /// Answers questions about the lock as long as it is polled. Cancel safe.
    pub async fn answer(&self, permit: &Permit) -> Infallible {
        self.questions.answer(permit).await
    }

    /// Waits until a process asks to release the lock. Cancel safe.
    pub async fn requested(&self) -> Request {
        Request(self.releases.accept().await)
    }

    /// Removes the state file.
    pub fn remove_file(&self) {
        self.file.remove();
    }
}

/// A process that waits until the lock is released.
pub(super) struct Request(UnixStream);

impl Request {
    /// Answers. The process sees the end of the answer with that of this process. `lost` is
    /// why the lock had been lost before, if so.
    pub fn answer(self, what: &str, lost: Option<&str>) {
        let text = match lost {
            None => format!("{RELEASED}{what}"),
            Some(why) => format!("{LOST}{what} was lost: {why}"),
        };
        if let Ok(mut stream) = self.0.into_std() {
            // It may have ended. An answer this short never blocks.
            let _ = stream.write_all(text.as_bytes());
            std::mem::forget(stream);
        }
    }
}

/// Takes the socket that is standard output, so that nothing else writes to it.
fn take_stdout() -> io::Result<UnixStream> {
    let foreground = Std::from(io::stdout().as_fd().try_clone_to_owned()?);
    foreground.set_nonblocking(true)?;
    dup2_stdout(null()?)?;
    UnixStream::from_std(foreground)
}

/// Closes the descriptors that the process has from the one that started it. A program that
/// reads its output until the end would wait for this process.
fn leave_streams() -> io::Result<()> {
    let null = null()?;
    dup2_stdin(&null)?;
    dup2_stderr(&null)?;
    std::env::set_current_dir("/")?;
    let open = fs::read_dir("/proc/self/fd")?;
    let open: Vec<i32> =
        open.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|&number| number > 2 && is_inherited(number)) {
        nix::unistd::close(descriptor)?;
    }
    Ok(())
}

/// Whether a descriptor would be passed on to another program. Those that this process has
/// opened itself would not.
fn is_inherited(descriptor: i32) -> bool {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlag::O_CLOEXEC.bits() == 0)
}

fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}
