//! A process that acquires and releases one lock on request, of ours or of a peer. See the parent
//! module for the requests, and `serve` for the processes in Rust.

use std::process::Stdio;
use std::time::Duration;

use lockkeeper_testkit::world::PATIENCE;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::Result;

/// What starts the processes of one implementation, for one lock.
#[derive(Clone)]
pub struct Site {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The URL of the server. Empty: there is none.
    pub url: String,
    /// The name of the lock.
    pub lock: String,
    /// The file of the processes' standard error.
    pub log: String,
}

/// The process, killed when dropped.
pub struct Locker {
    child: Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    log: String,
}

impl Locker {
    /// Starts a process.
    pub fn start(site: &Site) -> Result<Self> {
        let (program, arguments) = site.command.split_first().ok_or("no command")?;
        let log = std::fs::File::options().create(true).append(true).open(&site.log)?;
        let mut child = Command::new(program)
            .args(arguments)
            .env("LOCKER_URL", &site.url)
            .env("LOCKER_LOCK", &site.lock)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let requests = child.stdin.take().ok_or("no stdin")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        Ok(Self { child, requests, answers, log: site.log.clone() })
    }

    /// Starts a process that has connected: it has acquired and released the lock once.
    pub async fn warm(site: &Site) -> Result<Self> {
        let mut locker = Self::start(site)?;
        locker.ask("acquire").await?;
        locker.ask("release").await?;
        Ok(locker)
    }

    /// Sends a request.
    pub async fn send(&mut self, request: &str) -> Result<()> {
        self.requests.write_all(format!("{request}\n").as_bytes()).await?;
        Ok(())
    }

    /// Waits for the next answer.
    pub async fn answer(&mut self) -> Result<u64> {
        let line = timeout(PATIENCE, self.answers.next_line()).await??;
        let line = line.ok_or_else(|| format!("a locker ended; its errors are in {}", self.log))?;
        Ok(line.parse()?)
    }

    /// Sends a request and waits for its answer.
    pub async fn ask(&mut self, request: &str) -> Result<u64> {
        self.send(request).await?;
        self.answer().await
    }

    /// Acquires and releases for a time. Returns how often.
    pub async fn run(&mut self, time: Duration) -> Result<u64> {
        self.ask(&format!("run {}", time.as_millis())).await
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.child.start_kill()?)
    }
}
