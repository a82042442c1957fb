//! A RabbitMQ, a Redis or a Kubernetes of a test's own, started by the project's scripts, for
//! what the shared ones must not be made to do: stop, hang, come back. Ended and
//! removed when it is dropped, also by a failing test.

#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use super::environment::{random, signal, variable};

/// One server in a directory of its own.
pub struct OwnServer {
    program: &'static str,
    directory: PathBuf,
}

impl OwnServer {
    /// A RabbitMQ, running.
    pub async fn rabbitmq() -> Self {
        Self::new("rabbitmq").await
    }

    /// A Redis, running.
    pub async fn redis() -> Self {
        Self::new("redis").await
    }

    /// An API server with its controllers, running and empty.
    pub async fn kubernetes() -> Self {
        Self::new("kubernetes").await
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A RabbitMQ that is also reached over TLS, running. It serves with the
    /// certificate `server` of this authority, and refuses a client without one of
    /// the same authority.
    pub async fn rabbitmq_over_tls(authority: &super::authority::Authority) -> Self {
        let server = Self::unstarted("rabbitmq");
        let tls = server.directory.join("rabbitmq/tls");
        std::fs::create_dir_all(&tls).unwrap();
        for name in ["ca.crt", "server.crt", "server.key"] {
            std::fs::copy(authority.file(name), tls.join(name)).unwrap();
        }
        server.start().await;
        server
    }

    async fn new(program: &'static str) -> Self {
        let server = Self::unstarted(program);
        server.start().await;
        server
    }

    fn unstarted(program: &'static str) -> Self {
        let directory =
            Path::new(&variable("LOCKKEEPER_DEV_DIR")).join(format!("own-{program}-{}", random()));
        std::fs::create_dir(&directory).unwrap();
        Self { program, directory }
    }

    /// Starts it, where it answered before; returns when it answers.
    pub async fn start(&self) {
        let mut command = self.script("start");
        let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap();
        assert!(status.unwrap().success(), "{} starts", self.program);
    }

    /// Stops it in order; returns when its process has ended.
    pub async fn stop(&self) {
        let mut command = self.script("stop");
        let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap();
        assert!(status.unwrap().success(), "{} stops", self.program);
    }

    /// Sets off a RabbitMQ's memory alarm, or ends it: meanwhile it takes nothing
    /// more from whoever publishes.
    #[allow(dead_code, reason = "not every test binary needs an alarm")]
    pub async fn block(&self, blocked: bool) {
        let mut command = self.script(if blocked { "block" } else { "unblock" });
        let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap();
        assert!(status.unwrap().success(), "its watermark is set");
    }

    /// Lets a RabbitMQ take back what is not acknowledged within 2 s, on channels that
    /// are opened from now on: its consumer timeout.
    pub async fn hurry(&self) {
        let mut command = self.script("hurry");
        let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap();
        assert!(status.unwrap().success(), "its consumer timeout is set");
    }

    /// Lets it do nothing any more, with all its connections open.
    pub fn hang(&self) {
        signal(self.pid().expect("the server runs"), "STOP");
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        signal(self.pid().expect("the server runs"), "CONT");
    }

    /// A variable of its environment: `AMQP_URL`, `RABBITMQ_MANAGEMENT_URL`,
    /// `REDIS_URL` or `KUBECONFIG`; over TLS `AMQPS_URL` and
    /// `RABBITMQ_MANAGEMENT_TLS_URL`.
    pub fn variable(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.directory.join("env")).unwrap();
        let start = format!("export {name}='");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{name} is in {text}")).trim_end_matches('\'').to_owned()
    }

    fn pid(&self) -> Option<u32> {
        let file = self.directory.join(self.program).join(format!("{}.pid", self.program));
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    fn script(&self, verb: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("dev").join(self.program);
        let mut command = Command::new(script);
        command.arg(verb).arg(&self.directory);
        command
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // kill ends the server whatever it is doing; stop, what belongs to it.
        for verb in ["kill", "stop"] {
            let _ = self.script(verb).status();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
