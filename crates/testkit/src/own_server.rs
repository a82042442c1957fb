//! A private RabbitMQ, Redis or Kubernetes for a test, started by the project's scripts,
//! for events that the shared ones must not experience: stopping, hanging, restarting.
//! Ended and removed when dropped, also by a failing test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::built::checkout;
use super::environment::{random, signal, variable};

/// A server in its own directory.
pub struct OwnServer {
    program: &'static str,
    directory: PathBuf,
    /// Whether it is shared with other tests, and is kept.
    shared: bool,
}

impl OwnServer {
    /// Starts a RabbitMQ.
    pub async fn rabbitmq() -> Self {
        Self::new("rabbitmq").await
    }

    /// Starts an Apache Qpid Broker-J.
    pub async fn qpid() -> Self {
        Self::new("qpid").await
    }

    /// Starts a Redis.
    pub async fn redis() -> Self {
        Self::new("redis").await
    }

    /// Starts an API server with its controllers, without objects.
    pub async fn kubernetes() -> Self {
        Self::new("kubernetes").await
    }

    /// Returns the directory of its files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts a RabbitMQ that also serves TLS. It uses the certificate `server` of this
    /// authority, and rejects clients without a certificate of the same authority.
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
        Self { program, directory, shared: false }
    }

    /// Returns the RabbitMQ of this directory, which other tests use too.
    pub(crate) fn shared_rabbitmq(directory: PathBuf) -> Self {
        Self { program: "rabbitmq", directory, shared: true }
    }

    /// Starts it on its previous ports. Returns when it responds.
    pub async fn start(&self) {
        self.run("start").await;
    }

    /// Stops it cleanly. Returns when its process has ended.
    pub async fn stop(&self) {
        self.run("stop").await;
    }

    /// Kills it. Returns when its process has ended.
    pub async fn kill(&self) {
        self.run("kill").await;
    }

    /// Triggers a RabbitMQ's memory alarm, or ends it. During the alarm it accepts no
    /// messages from publishers.
    pub async fn block(&self, blocked: bool) {
        self.run(if blocked { "block" } else { "unblock" }).await;
    }

    /// Reduces a RabbitMQ's consumer timeout to 2 s, on channels that are opened from now
    /// on.
    pub async fn hurry(&self) {
        self.run("hurry").await;
    }

    /// Suspends it, with all its connections open.
    pub fn hang(&self) {
        let pid = self.pid().expect("the server runs");
        signal(pid, "STOP");
        // Each of its threads stops for itself.
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| stat.rsplit_once(") ").unwrap().1.starts_with('T'))
        };
        while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(stopped) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Resumes it. Has no effect unless it is suspended.
    pub fn go_on(&self) {
        if let Some(pid) = self.pid() {
            signal(pid, "CONT");
        }
    }

    /// Evaluates Erlang expressions in a RabbitMQ, also while it has paused itself.
    pub async fn evaluate(&self, erlang: &str) {
        let mut command = self.script("eval");
        command.arg(erlang).stdout(Stdio::null());
        succeed(command).await;
    }

    /// Returns a variable of its environment: `AMQP_URL`, `RABBITMQ_MANAGEMENT_URL`,
    /// `QPID_URL`, `REDIS_URL` or `KUBECONFIG`; with TLS `AMQPS_URL` and
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

    async fn run(&self, verb: &str) {
        succeed(self.script(verb)).await;
    }

    fn script(&self, verb: &str) -> Command {
        let script = checkout().join("dev").join(self.program);
        let mut command = Command::new(script);
        command.arg(verb).arg(&self.directory);
        command
    }
}

/// Runs a command to its end. Panics if it fails.
pub(crate) async fn succeed(mut command: Command) {
    let run = move || (command.status(), command);
    let (status, command) = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(status.unwrap().success(), "{command:?} succeeds");
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if self.shared {
            return;
        }
        // kill ends the server in any state; stop ends its other processes.
        for verb in ["kill", "stop"] {
            let _ = self.script(verb).status();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
