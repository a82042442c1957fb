//! Every shape that a command can have, under every way in which it must end: no process of
//! it runs at the same time as the next holder, whatever its group, session, parent or name is.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::iter;
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::{random, signal};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio::process::Command;

use crate::exec::commands::{Running, Scratch, alive_with, child_of};
use crate::exec::{lockkeeper, succeed};

/// Number of cases at the same time.
const AT_ONCE: usize = 4;

/// Appends a line with its run's name to the file `$0` until it is ended.
pub const JOB: &str = r#"while :; do echo "$RUN" >>"$0"; sleep 0.05; done"#;

/// The shapes of a command. `$JOB` is the job, and `$0` its file.
pub const SHAPES: [(&str, Shape); 12] = [
    ("plain", Shape::Words(&["sh", "-c", JOB])),
    ("timeout", Shape::Words(&["timeout", "60", "sh", "-c", JOB])),
    ("a session of its own", Shape::Words(&["setsid", "-w", "sh", "-c", JOB])),
    ("a session in the background", Shape::Script(r#"setsid sh -c "$JOB" "$0" & sleep 60"#)),
    ("a double fork", Shape::Script(r#"(setsid sh -c "$JOB" "$0" &); sleep 60"#)),
    ("nohup", Shape::Script(r#"nohup sh -c "$JOB" "$0" >/dev/null 2>&1 & wait"#)),
    ("a nested exec", Shape::Nested),
    ("a pipeline", Shape::Script(r#"sh -c "$JOB" "$0" | cat | cat"#)),
    ("a name that is not UTF-8", Shape::OddName),
    (
        "a stopped child",
        Shape::Script(
            r#"sh -c "$JOB" "$0" & until [ -s "$0" ]; do sleep 0.05; done; kill -STOP $!; wait"#,
        ),
    ),
    ("deaf to TERM", Shape::Words(&["sh", "-c", DEAF])),
    ("job control", Shape::Words(&["bash", "-c", r#"set -m; sh -c "$JOB" "$0" & wait"#])),
];

const DEAF: &str = r#"trap "" TERM; while :; do echo "$RUN" >>"$0"; sleep 0.05; done"#;

#[derive(Clone, Copy)]
pub enum Shape {
    Words(&'static [&'static str]),
    /// A script of `sh`.
    Script(&'static str),
    /// Under another lock. Its own kill-after is longer than the outer lock's delay.
    Nested,
    /// The job as a program with a name in Latin-1.
    OddName,
}

impl Shape {
    /// Returns the command without its file. `folder` is for a program, `inner` a lock.
    pub fn words(&self, folder: &str, inner: &str) -> Vec<OsString> {
        let program = built::lockkeeper();
        let words: Vec<&str> = match self {
            Self::Words(words) => words.to_vec(),
            Self::Script(script) => vec!["sh", "-c", script],
            Self::Nested => {
                vec![program, "exec", inner, "--kill-after", "30s", "--", "sh", "-c", DEAF]
            }
            Self::OddName => {
                let mut name = folder.to_owned().into_bytes();
                name.extend(b"/name-\xe9\xe9\xe9\xe9");
                let path = OsString::from_vec(name);
                std::fs::write(&path, format!("#!/bin/sh\ntrap '' TERM\nset -- \"$1\"\n{ODD}"))
                    .unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
                return vec![path];
            }
        };
        words.into_iter().map(OsString::from).collect()
    }

    /// Whether it goes on after TERM, with the lock.
    pub fn ignores_term(&self) -> bool {
        match self {
            Self::Words(words) => words.contains(&DEAF),
            Self::Nested | Self::OddName => true,
            Self::Script(_) => false,
        }
    }
}

const ODD: &str = r#"while :; do echo "$RUN" >>"$1"; sleep 0.05; done"#;

/// A way in which a command must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The connection breaks.
    Lost,
    /// `exec` gets TERM.
    Term,
    /// `exec` is killed.
    Killed,
    /// The slot is removed, with `--on-drain stop`.
    Drained,
    /// The guardian is killed.
    Unguarded,
}

impl Way {
    /// Whether the broker frees the slot before the command has ended.
    fn frees_at_once(self) -> bool {
        matches!(self, Self::Lost | Self::Killed)
    }
}

struct Case {
    vhost: Vhost,
    scratch: Scratch,
    lock: String,
    inner: String,
}

impl Case {
    fn exec(&self, name: &str, url: &str, command: &[OsString]) -> Running {
        let options = ["exec", &self.lock, "--kill-after", "500ms", "--on-drain", "stop"];
        let mut exec: Command = lockkeeper(&self.vhost, &options);
        exec.args(["--url", url, "--"])
            .args(command)
            .arg(self.scratch.file("register"))
            .env("JOB", JOB)
            .env("RUN", self.mark(name));
        Running::start(&self.scratch, name, exec)
    }

    /// A text in the environment of all processes of this run.
    fn mark(&self, name: &str) -> String {
        format!("{name}-{}", self.lock)
    }

    fn alive(&self, name: &str) -> Vec<u32> {
        alive_with(&format!("RUN={}", self.mark(name)))
    }

    /// Returns the processes of the first command that are none of Lockkeeper's.
    fn alive_jobs(&self) -> Vec<u32> {
        let is_ours = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            ["lockkeeper", "exe"].contains(&name.trim())
        };
        self.alive("first").into_iter().filter(|pid| !is_ours(pid)).collect()
    }
}

/// Runs the command of this shape, ends it in this way, and lets another client follow.
async fn end(name: &str, shape: &Shape, way: Way) {
    let vhost = Vhost::create().await;
    let lock = format!("ci.{}", random());
    let case = Case { vhost, scratch: Scratch::new(), inner: format!("{lock}.inner"), lock };
    // Longer than --kill-after. Otherwise nothing is free before the command has ended.
    let delay: &[&str] = if way.frees_at_once() { &["--lock-delay", "3s"] } else { &[] };
    let create = ["semaphore", "create", &case.lock, "--slots", "1"];
    succeed(&case.vhost, &[&create[..], delay].concat()).await;
    succeed(&case.vhost, &["semaphore", "create", &case.inner, "--slots", "1"]).await;
    let proxy = Proxy::start().await;
    let words = shape.words(&case.scratch.file(""), &case.inner);
    let mut first = case.exec("first", &proxy.url(&case.vhost.url()), &words);
    let one = case.mark("first");
    case.scratch.next_holder(&[]).await;
    let mut second = case.exec("second", &case.vhost.url(), &plain(JOB));
    second.until_it_says("waiting for a ").await;

    let what = format!("{name}, {way:?}");
    let code = match way {
        Way::Lost => {
            proxy.cut();
            Some(80)
        }
        Way::Term => {
            first.signal("TERM");
            if shape.ignores_term() {
                // It keeps the lock until it is killed.
                let lines = case.scratch.read("register").lines().count();
                let goes_on = async || case.scratch.read("register").lines().count() > lines + 5;
                eventually("it goes on", goes_on).await;
                case.alive_jobs().into_iter().for_each(|pid| signal(pid, "KILL"));
            }
            None
        }
        Way::Killed => {
            first.signal("KILL");
            None
        }
        Way::Drained => {
            succeed(&case.vhost, &["semaphore", "set", &case.lock, "0", "--no-wait"]).await;
            None
        }
        Way::Unguarded => {
            signal(child_of(first.pid()), "KILL");
            Some(80)
        }
    };
    let ended = first.code().await;
    assert!(code.is_none() || ended == code, "{what}: {ended:?}: {}", first.said());
    if way == Way::Drained {
        assert_eq!(case.alive("first"), [0; 0], "{what}: {}", first.said());
        succeed(&case.vhost, &["semaphore", "set", &case.lock, "1"]).await;
    }
    case.scratch.next_holder(&[&one]).await;
    assert_eq!(case.alive("first"), [0; 0], "{what}: {}", first.said());
    let lines = case.scratch.read("register").lines().count();
    let goes_on = async || case.scratch.read("register").lines().count() > lines + 10;
    eventually("the next one goes on", goes_on).await;
    assert_eq!(case.scratch.holders(), [one, case.mark("second")], "{what}: one after the other");
    assert!(!first.said().contains("run on"), "{what}: {}", first.said());
    second.signal("TERM");
    assert_eq!(second.code().await, Some(143), "{what}: {}", second.said());
}

fn plain(script: &str) -> Vec<OsString> {
    ["sh", "-c", script].map(OsString::from).to_vec()
}

async fn end_all(way: Way) {
    iter(&SHAPES)
        .map(|(name, shape)| end(name, shape, way))
        .buffer_unordered(AT_ONCE)
        .count()
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_of_a_command_ends_when_the_lock_is_lost() {
    end_all(Way::Lost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_of_a_command_gets_the_signal_that_exec_gets() {
    end_all(Way::Term).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_of_a_command_ends_when_exec_is_killed() {
    end_all(Way::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_of_a_command_ends_when_its_slot_is_removed() {
    end_all(Way::Drained).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_of_a_command_ends_when_the_guardian_is_killed() {
    end_all(Way::Unguarded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_kills_a_command_whose_exec_and_guardian_are_killed_together() {
    let vhost = Vhost::create().await;
    let lock = format!("ci.{}", random());
    let case = Case { vhost, scratch: Scratch::new(), inner: String::new(), lock };
    succeed(&case.vhost, &["semaphore", "create", &case.lock, "--slots", "1"]).await;
    let command = plain(DEAF);
    let first = case.exec("first", &case.vhost.url(), &command);
    case.scratch.next_holder(&[]).await;
    let (exec, guardian) = (first.pid(), child_of(first.pid()));
    // In one go, as when memory runs out: neither reacts to the other's end.
    let pids = [exec.to_string(), guardian.to_string()];
    assert!(std::process::Command::new("kill").arg("-KILL").args(pids).status().unwrap().success());
    // Its short-lived children end by themselves.
    eventually("the command is gone", async || case.alive("first").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_from_before_exec_are_not_a_part_of_its_command() {
    let vhost = Vhost::create().await;
    let lock = format!("ci.{}", random());
    succeed(&vhost, &["semaphore", "create", &lock, "--slots", "1"]).await;
    let scratch = Scratch::new();
    // The service replaces its worker after a while, and the new one is an orphan.
    let script = r#"
        (sleep 61 & echo $! >>"$0"; until [ -e "$0.go" ]; do sleep 0.05; done; (sleep 62 & echo $! >>"$0")) &
        exec "$@""#;
    let file = scratch.file("service");
    let exec = lockkeeper(
        &vhost,
        &["exec", &lock, "--", "sh", "-c", "echo x >>\"$0\"; sleep 60", &scratch.file("began")],
    );
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, &file])
        .arg(exec.as_std().get_program())
        .args(exec.as_std().get_args());
    shell.envs(exec.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.kill_on_drop(true);
    let mut exec = Running::start(&scratch, "exec", shell);
    eventually("the command runs", async || !scratch.read("began").is_empty()).await;
    std::fs::write(scratch.file("service.go"), "").unwrap();
    eventually("the new worker runs", async || scratch.read("service").lines().count() == 2).await;
    // exec looks four times a second for such orphans.
    tokio::time::sleep(Duration::from_secs(1)).await;
    exec.signal("TERM");
    assert_eq!(exec.code().await, Some(143), "{}", exec.said());
    for pid in scratch.read("service").lines() {
        let pid: u32 = pid.parse().unwrap();
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists(), "{}", exec.said());
        signal(pid, "KILL");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_of_a_command_are_reaped_while_it_runs() {
    let vhost = Vhost::create().await;
    let lock = format!("ci.{}", random());
    succeed(&vhost, &["semaphore", "create", &lock, "--slots", "1"]).await;
    let scratch = Scratch::new();
    let script =
        r#"for i in 1 2 3 4 5; do (sh -c 'echo $$ >>"$0"; sleep 0.1' "$0" &); done; sleep 60"#;
    let command =
        lockkeeper(&vhost, &["exec", &lock, "--", "sh", "-c", script, &scratch.file("pids")]);
    let mut exec = Running::start(&scratch, "exec", command);
    eventually("they have started", async || scratch.read("pids").lines().count() == 5).await;
    let are_reaped = async || {
        let pids = scratch.read("pids");
        pids.lines().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    };
    eventually("they are reaped", are_reaped).await;
    exec.signal("TERM");
    assert_eq!(exec.code().await, Some(143));
}
