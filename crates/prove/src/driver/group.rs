//! Runs a child process in its own process group, so that its children end with it. See
//! `process` and `exec` for the communication with it.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

/// Maximum number of bytes of stderr that are kept. Earlier bytes are dropped.
pub const KEPT: usize = 64 * 1024;

/// Time to wait for the end of stderr after the process has ended. A process that left the group
/// may keep stderr open.
const STDERR_GRACE: Duration = Duration::from_secs(1);

/// Environment variables: names and values.
pub type Environment = Vec<(String, String)>;

/// A child process and its group. Dropping it kills the group.
#[derive(Debug)]
pub struct Group {
    child: Child,
    control: Control,
    stderr: Stderr,
    status: Option<ExitStatus>,
}

/// Sends signals to a group, from any task.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// The id of the group, or 0 if its first process has ended.
    group: Arc<AtomicI32>,
}

impl Control {
    /// Sends a signal to every process of the group, unless the first one has ended.
    pub fn signal(&self, signal: Signal) {
        let group = self.group.load(Ordering::Acquire);
        if group > 0 {
            // An error means that the group has just ended.
            let _ = killpg(Pid::from_raw(group), signal);
        }
    }

    /// Kills the first process of the group (SIGKILL), and no other. Does not wait for its end.
    pub fn kill_first(&self) {
        let first = self.group.load(Ordering::Acquire);
        if first > 0 {
            // An error means that it has just ended.
            let _ = kill(Pid::from_raw(first), Signal::SIGKILL);
        }
    }

    /// Suspends the group (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Resumes the group (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the group (SIGKILL). Does not wait for its end.
    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }
}

#[derive(Debug)]
struct Stderr {
    kept: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Group {
    /// Starts `command` with a shell that it replaces, and assigns the new group to `control`.
    /// `environment` is added to the environment of this process. Without `pipes`, stdin is
    /// empty and stdout is discarded.
    ///
    /// # Errors
    ///
    /// The shell could not be started.
    pub fn start(
        command: &str,
        environment: &Environment,
        pipes: bool,
        control: &Control,
    ) -> io::Result<(Self, Option<(ChildStdin, ChildStdout)>)> {
        let pipe = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(pipe(pipes))
            .stdout(pipe(pipes))
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let ends = child.stdin.take().zip(child.stdout.take());
        let kept = Arc::default();
        let reader = child.stderr.take().map(|from| tokio::spawn(keep(from, Arc::clone(&kept))));
        let id = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or_default();
        control.group.store(id, Ordering::Release);
        let control = control.clone();
        Ok((Self { child, control, stderr: Stderr { kept, reader }, status: None }, ends))
    }

    /// Returns a handle with which other tasks send signals to the group.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Waits for the end of the process, then kills the remaining processes of its group. Cancel
    /// safe.
    ///
    /// # Errors
    ///
    /// Fails if the operating system does not report the exit status.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        let status = self.child.wait().await?;
        self.status = Some(status);
        // The kernel does not reuse the id of a group that has members. Without members, the
        // kill fails.
        self.control.kill();
        self.control.group.store(0, Ordering::Release);
        Ok(status)
    }

    /// Kills the group and waits for the end of the process. Returns its exit status, if known.
    pub async fn kill(&mut self) -> Option<ExitStatus> {
        self.control.kill();
        self.ended().await.ok()
    }

    /// Returns the last part of stderr. If the process has ended, waits for the remaining
    /// output.
    pub async fn stderr(&mut self) -> String {
        if self.status.is_some()
            && let Some(reader) = self.stderr.reader.take()
        {
            let _ = tokio::time::timeout(STDERR_GRACE, reader).await;
        }
        let kept = self.stderr.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim_end().to_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.control.kill();
    }
}

/// Keeps the last bytes that are read.
async fn keep(mut from: ChildStderr, kept: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 8 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&buffer[..read]);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
}
