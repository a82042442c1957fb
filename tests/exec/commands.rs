//! The output of commands while they hold a lock, and which of them are alive: each
//! process of a command appends its lock's holder to a file.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_testkit::environment::{random, signal};
use lockkeeper_testkit::rabbitmq::eventually;
use tokio::process::{Child, Command};

/// Writes the holder into the file `$0` until it is ended, in two processes. The interval
/// is long enough that many of these do not overload the machine.
pub const WRITE: &str = r#"
write() { while :; do echo "$LOCK_HOLDER_ID" >>"$0"; sleep 0.05; done; }
write & write"#;

/// A directory for one test, removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("exec-{}", random()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Returns the path of a file in it.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Returns the contents of a file, or nothing if it does not exist.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// Returns the holders in the register in the order in which they wrote, each once
    /// for each uninterrupted period.
    pub fn holders(&self) -> Vec<String> {
        let mut holders: Vec<String> = self.read("register").lines().map(str::to_owned).collect();
        holders.dedup();
        holders
    }

    /// Waits until a holder other than `known` writes. Returns that holder.
    pub async fn next_holder(&self, known: &[&str]) -> String {
        let new = || self.holders().into_iter().find(|id| !known.contains(&id.as_str()));
        eventually("a new holder has the lock", async || new().is_some()).await;
        new().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running process, and its output on stderr.
pub struct Running {
    pub process: Child,
    stderr: PathBuf,
}

impl Running {
    /// Starts the process. Its stderr goes to the file `name`.
    pub fn start(scratch: &Scratch, name: &str, mut command: Command) -> Self {
        let stderr = PathBuf::from(scratch.file(name));
        let file = std::fs::File::create(&stderr).unwrap();
        let process = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Self { process, stderr }
    }

    pub fn pid(&self) -> u32 {
        self.process.id().expect("it runs")
    }

    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    /// Waits until its stderr contains this text.
    pub async fn until_it_says(&self, text: &str) {
        let heard = async || self.said().contains(text);
        eventually(&format!("it says {text:?}"), heard).await;
    }

    /// Waits for its end. Returns the exit code.
    pub async fn code(&mut self) -> Option<i32> {
        let end = tokio::time::timeout(Duration::from_secs(15), self.process.wait()).await;
        end.unwrap_or_else(|_| panic!("it goes on and on: {}", self.said())).unwrap().code()
    }
}

/// Returns the living processes that have this text in `/proc/<pid>/<file>`.
fn processes(file: &str, holds: impl Fn(&str) -> bool) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap();
    pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid| {
            // The name in it may be any bytes.
            let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
            let stat = String::from_utf8_lossy(&stat);
            let state = stat.rsplit_once(')').map_or("Z", |(_, rest)| rest).trim();
            let content = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            !state.starts_with('Z') && holds(&String::from_utf8_lossy(&content))
        })
        .collect()
}

/// Returns the processes of this acquisition's command.
pub fn alive(holder: &str) -> Vec<u32> {
    alive_with(&format!("LOCK_HOLDER_ID={holder}"))
}

/// Returns the living processes with this variable, written `NAME=VALUE`.
pub fn alive_with(variable: &str) -> Vec<u32> {
    processes("environ", |environment| environment.split('\0').any(|v| v == variable))
}

/// Returns the living processes that were started with this argument.
pub fn alive_with_argument(argument: &str) -> Vec<u32> {
    processes("cmdline", |line| line.split('\0').any(|word| word == argument))
}

/// Returns whether this process has living children.
pub fn has_children(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().any(|task| {
        let children = std::fs::read_to_string(task.path().join("children"));
        children.is_ok_and(|children| !children.is_empty())
    })
}

/// Returns the only child of this process.
pub fn child_of(pid: u32) -> u32 {
    let is_child = |stat: &str| {
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(1) == Some(&pid.to_string())
    };
    let children = processes("stat", is_child);
    assert_eq!(children.len(), 1, "the children of {pid}: {children:?}");
    children[0]
}
