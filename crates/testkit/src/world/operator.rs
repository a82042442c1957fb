//! An operator as a process.

use std::fs::File;
use std::io::Write;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use crate::environment::{PATIENCE, signal};

/// An operator process. It keeps running when this is dropped, so that the test's objects
/// can be cleaned up. The world ends it.
pub struct Operator {
    child: Child,
    /// Its log file.
    pub log: String,
    address: OnceLock<String>,
}

impl Operator {
    /// Starts a process that logs to this file.
    pub fn start(command: &mut Command, log: String) -> Self {
        let child =
            command.stdin(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log, address: OnceLock::new() }
    }

    /// Waits until it watches both kinds.
    pub async fn until_ready(&self) {
        self.until_logged(" watching ", 2).await;
    }

    /// Waits until its log contains this text this often.
    pub async fn until_logged(&self, text: &str, times: usize) {
        let start = Instant::now();
        while self.logged().matches(text).count() < times {
            let log = &self.log;
            assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {text:?} in {log}");
            // Often, because the start of an operator is measured too.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns its HTTP address.
    pub fn http(&self) -> String {
        let address = || {
            let log = self.logged();
            let at = log.split("address=").nth(1).unwrap();
            format!("http://{}", at.split_whitespace().next().unwrap())
        };
        self.address.get_or_init(address).clone()
    }

    /// Returns its metrics.
    pub async fn scrape(&self) -> String {
        let answer = reqwest::get(format!("{}/metrics", self.http())).await.unwrap();
        assert!(answer.status().is_success());
        answer.text().await.unwrap()
    }

    /// Returns its metrics. They are also kept with its log, for the checks of the whole
    /// run.
    pub async fn metrics(&self) -> String {
        let text = self.scrape().await;
        let log = self.log.trim_end_matches(".log");
        let kept = File::options().create(true).append(true).open(format!("{log}.metrics"));
        kept.unwrap().write_all(text.as_bytes()).unwrap();
        text
    }

    /// Returns its log.
    pub fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Kills it with SIGKILL.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> std::process::ExitStatus {
        self.child.wait().await.unwrap()
    }

    /// Requests it to stop, and waits until it has.
    pub async fn stop(&mut self) -> std::process::ExitStatus {
        signal(self.pid(), "TERM");
        tokio::time::timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap()
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Sends it a signal: `STOP` suspends it, `CONT` resumes it.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }
}
