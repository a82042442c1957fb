//! `lockkeeper hold --background`: later processes verify and release the lock, and every way
//! in which such a hold ends leaves the lock to the next client.

use std::os::unix::fs::PermissionsExt;

use lockkeeper_plan::naming::Protocol;
use lockkeeper_testkit::environment::{signal, signal_group};
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::exec::commands::{Running, Scratch, alive_with_argument, child_of};
use crate::exec::holding::end_the_mutex;
use crate::exec::{LOCK, create, lockkeeper, outcome, prefixed, program, run, succeed};

with_protocols! {
    every {
        a_lock_is_held_verified_and_released_by_steps_of_their_own,
    }
}

/// A state file. A process that a failed test leaves behind ends with the tests.
struct State {
    scratch: Scratch,
    file: String,
    tests: String,
}

impl State {
    fn new() -> Self {
        let scratch = Scratch::new();
        let file = scratch.file("state");
        Self { scratch, file, tests: std::process::id().to_string() }
    }

    /// Returns the arguments of a hold of this lock with this file.
    fn holding<'a>(&'a self, lock: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
        let options = ["--background", "--state", &self.file, "--while", &self.tests];
        let options = if more.contains(&"--while") { &options[..3] } else { &options[..] };
        [&["hold"], lock, options, more].concat()
    }

    /// Holds the lock in the background. Returns when its pipes are closed.
    async fn hold(&self, at: &impl At, more: &[&str]) {
        let held = run(at, &self.holding(&[LOCK], more)).await;
        assert_eq!((held.code, held.stderr.as_str()), (Some(0), ""), "{held:?}");
        assert!(held.stdout.starts_with("holding "), "{held:?}");
    }

    fn record(&self) -> Value {
        serde_json::from_str(&self.scratch.read("state")).unwrap()
    }

    /// Returns the process that holds.
    fn pid(&self) -> u32 {
        u32::try_from(self.record()["pid"].as_u64().unwrap()).unwrap()
    }

    fn exists(&self) -> bool {
        std::fs::exists(&self.file).unwrap()
    }

    /// Runs `verify` or `release`, which must end with this code and say this.
    async fn ask(&self, verb: &str, code: i32, says: &str) {
        let asked = outcome(program(&[], &[verb, "--state", &self.file])).await;
        let said = format!("{}{}", asked.stdout, asked.stderr);
        assert_eq!(asked.code, Some(code), "{verb}: {asked:?}");
        assert!(said.contains(says), "{verb}: {asked:?}");
    }

    /// Waits until `verify` ends with this code.
    async fn until_verified_as(&self, code: i32) {
        let verified = async || {
            let asked = outcome(program(&[], &["verify", "--state", &self.file])).await;
            asked.code == Some(code)
        };
        eventually(&format!("verify exits with {code}"), verified).await;
    }

    /// Checks that a hold left neither its process nor its file.
    async fn is_gone(&self) {
        let ended = async || alive_with_argument(&self.file).is_empty();
        eventually("no process is left", ended).await;
        assert!(!self.exists(), "{}", self.scratch.read("state"));
        let folder = std::fs::read_dir(self.scratch.file("")).unwrap();
        let left: Vec<_> = folder.map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_str().unwrap().starts_with('.')), "{left:?}");
    }
}

/// Acquires the lock, which must be free now.
async fn is_free(at: &impl At) {
    succeed(at, &["exec", LOCK, "--no-wait", "--", "true"]).await;
}

async fn is_held(at: &impl At) {
    let other = run(at, &["exec", LOCK, "--no-wait", "--", "true"]).await;
    assert_eq!(other.code, Some(75), "{other:?}");
}

async fn a_lock_is_held_verified_and_released_by_steps_of_their_own(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    create(&place, 1).await;
    let state = State::new();
    state.hold(&place, &["--identity", "build 7"]).await;
    is_held(&place).await;
    let record = state.record();
    assert_eq!(record["state"], "held");
    assert_eq!((&record["lockName"], &record["identity"]), (&LOCK.into(), &"build 7".into()));
    assert_eq!(record["slot"].is_u64(), protocol.has_slots(), "{record}");
    let mode = std::fs::metadata(&state.file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let password = url::Url::parse(&place.url()).unwrap().password().unwrap().to_owned();
    assert!(!record.to_string().contains(&password), "{record}");
    state.ask("verify", 0, "").await;

    let again = run(&place, &state.holding(&[LOCK], &["--no-wait"])).await;
    assert_eq!(again.code, Some(82), "{again:?}");
    assert!(again.stderr.contains("lockkeeper release --state"), "{again:?}");

    state.ask("release", 0, "released ").await;
    is_free(&place).await;
    state.is_gone().await;
    state.ask("release", 81, "does not exist").await;
    state.ask("verify", 81, "does not exist").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_fails_leaves_neither_a_process_nor_a_file() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let first = State::new();
    first.hold(&vhost, &[]).await;
    let state = State::new();
    let nowhere = state.scratch.file("nowhere/state");
    let nothing = "amqp://127.0.0.1:1";
    for (code, lock, more) in [
        (75, LOCK, &["--no-wait"][..]),
        (9, LOCK, &["--no-wait", "-E", "9"]),
        (75, LOCK, &["--timeout", "1s"]),
        (81, "ci.other", &[]),
        (69, LOCK, &["--url", nothing]),
        (64, LOCK, &["--while", "4194304"]),
    ] {
        let failed = run(&vhost, &state.holding(&[lock], more)).await;
        assert_eq!((failed.code, failed.stdout.as_str()), (Some(code), ""), "{more:?}: {failed:?}");
        assert!(failed.stderr.starts_with("lockkeeper: "), "{more:?}: {failed:?}");
        state.is_gone().await;
    }
    first.ask("release", 0, "released slot 1").await;
    // Nothing is held if it cannot be found or reported.
    let options = ["--background", "--state", &nowhere];
    let unwritable = run(&vhost, &[&["hold", LOCK][..], &options].concat()).await;
    assert_eq!(unwritable.code, Some(73), "{unwritable:?}");
    assert!(unwritable.stderr.contains("nowhere/state"), "{unwritable:?}");
    let full = ["bash", "-c", r#""$0" "$@" >/dev/full"#];
    let unsaid = outcome(prefixed(&full, &vhost, &state.holding(&[LOCK], &[]))).await;
    assert_eq!(unsaid.code, Some(73), "{unsaid:?}");
    state.is_gone().await;
    is_free(&vhost).await;
}

/// Starts a hold that waits in the foreground.
async fn waiting(vhost: &Vhost, state: &State) -> Running {
    // The program that runs the tests may ignore INT, as a background job of a script does.
    let default = ["env", "--default-signal"];
    let waiting = prefixed(&default, vhost, &state.holding(&[LOCK], &[]));
    let waiting = Running::start(&state.scratch, "waiting", waiting);
    waiting.until_it_says("waiting for a slot of ci.deploy").await;
    waiting
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_in_the_foreground_owns_the_wait() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let first = State::new();
    first.hold(&vhost, &[]).await;
    let state = State::new();
    for (name, code, says) in [
        ("TERM", Some(75), "stopped while waiting for the lock"),
        ("INT", Some(75), "stopped while waiting for the lock"),
        ("KILL", None, "stopped with the command that started this process"),
    ] {
        let mut command = waiting(&vhost, &state).await;
        state.ask("verify", 75, "is not held yet").await;
        state.ask("release", 75, "is not held yet").await;
        command.signal(name);
        assert_eq!(command.code().await, code, "{name}: {}", command.said());
        state.is_gone().await;
        assert!(command.said().contains(says), "{name}: {}", command.said());
    }
    let mut command = waiting(&vhost, &state).await;
    signal(child_of(command.pid()), "KILL");
    assert_eq!(command.code().await, Some(137), "{}", command.said());
    assert!(command.said().contains("was killed by signal 9"), "{}", command.said());
    state.ask("verify", 80, "ended while it waited").await;

    // Its file is replaced. A release that came too early has no later effect.
    let mut command = waiting(&vhost, &state).await;
    state.ask("release", 75, "is not held yet").await;
    first.ask("release", 0, "released slot 1").await;
    assert_eq!(command.code().await, Some(0), "{}", command.said());
    state.ask("verify", 0, "").await;
    is_held(&vhost).await;
    state.ask("release", 0, "released slot 1").await;
}

/// Starts a step in a session of its own, which prints that it holds the lock, and then works.
fn step(vhost: &Vhost, state: &State) -> Command {
    // A program that reads the third descriptor would wait for a process that keeps it.
    let line = r#"held=$("$0" "$@" 3>&1 4<<<x); echo "it is $held" >&2; sleep 60"#;
    prefixed(&["setsid", "bash", "-c", line], vhost, &state.holding(&[LOCK], &[]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_survives_its_step_and_frees_the_lock_when_it_is_killed() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let state = State::new();
    let step = Running::start(&state.scratch, "step", step(&vhost, &state));
    step.until_it_says("it is holding slot 1 of ci.deploy").await;
    let pid = state.pid();
    signal_group(step.pid(), "KILL");
    state.ask("verify", 0, "").await;
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open = descriptors.filter_map(|it| std::fs::read_link(it.unwrap().path()).ok());
    let open: Vec<String> = open.map(|it| it.to_str().unwrap().to_owned()).collect();
    assert!(!open.iter().any(|it| it.starts_with("pipe:")), "{open:?}");

    signal(pid, "KILL");
    succeed(&vhost, &["exec", LOCK, "--timeout", "10s", "--", "true"]).await;
    state.ask("verify", 80, "its process was killed").await;
    // A later process with its pid is another one.
    let mut stranger = Command::new("sleep").arg("60").kill_on_drop(true).spawn().unwrap();
    let text = state.scratch.read("state");
    let other = stranger.id().unwrap().to_string();
    std::fs::write(
        &state.file,
        text.replace(&format!("\"pid\": {pid}"), &format!("\"pid\": {other}")),
    )
    .unwrap();
    state.ask("release", 80, "its process was killed").await;
    state.is_gone().await;
    assert!(stranger.try_wait().unwrap().is_none(), "it was not signalled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_ends_by_itself_says_why() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let state = State::new();
    let mut agent = Command::new("sleep").arg("60").kill_on_drop(true).spawn().unwrap();
    let agent_id = agent.id().unwrap().to_string();
    state.hold(&vhost, &["--while", &agent_id]).await;
    is_held(&vhost).await;
    agent.kill().await.unwrap();
    state.until_verified_as(80).await;
    is_free(&vhost).await;
    state.ask("verify", 80, "(--while) has ended").await;
    // Its file is replaced without a release.
    state.hold(&vhost, &["--release-after", "3s"]).await;
    state.until_verified_as(80).await;
    is_free(&vhost).await;
    state.ask("release", 80, "the time of --release-after (3s) has passed").await;
    state.is_gone().await;
    state.hold(&vhost, &[]).await;
    signal(state.pid(), "TERM");
    state.until_verified_as(80).await;
    is_free(&vhost).await;
    state.ask("release", 80, "ended by SIGTERM").await;
    state.is_gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn later_steps_learn_that_the_lock_was_lost() {
    let vhost = Vhost::create().await;
    for on_lost in ["terminate", "warn"] {
        let state = State::new();
        let options = ["--heartbeat", "2s", "--on-lost", on_lost];
        let held = run(&vhost, &state.holding(&["--mutex", "ci.one"], &options)).await;
        assert_eq!(held.stdout, "holding ci.one\n", "{held:?}");
        end_the_mutex(&vhost).await;
        state.until_verified_as(80).await;
        vhost.management.delete(&format!("policies/{}/gone", vhost.name)).await;
        eventually("it is recorded", async || state.record()["state"] == "lost").await;
        let why = "its queue is gone from the broker";
        state.ask("verify", 80, why).await;
        state.ask("release", 80, why).await;
        state.is_gone().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn later_steps_have_the_fencing_token_and_learn_that_the_slot_was_removed() {
    for on_drain in ["finish", "stop"] {
        let (vhost, state) = (Vhost::create().await, State::new());
        succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "1", "--fencing"]).await;
        state.hold(&vhost, &["--heartbeat", "2s", "--on-drain", on_drain]).await;
        let record = state.record();
        assert!(record["fencingToken"].as_u64() > Some(0), "{record}");
        assert_eq!((record["slot"].as_u64(), &record["tokenId"]), (Some(1), &Value::Null));
        assert!(record["holderId"].is_string() && record["acquired"].is_string(), "{record}");
        succeed(&vhost, &["semaphore", "set", LOCK, "0", "--no-wait"]).await;
        if on_drain == "finish" {
            eventually("it drains", async || state.record()["state"] == "draining").await;
            state.ask("verify", 0, "its slot was removed: release it soon").await;
            state.ask("release", 0, "released slot 1").await;
        } else {
            state.until_verified_as(80).await;
            state.ask("release", 80, "its slot was removed").await;
        }
        state.is_gone().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_file_a_lock_stays_held_until_the_process_ends() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let state = State::new();
    state.hold(&vhost, &[]).await;
    let pid = state.pid();
    std::fs::remove_dir_all(state.scratch.file("")).unwrap();
    state.ask("verify", 81, "does not exist").await;
    is_held(&vhost).await;
    signal(pid, "TERM");
    let ended = async || alive_with_argument(&state.file).is_empty();
    eventually("it has ended", ended).await;
    is_free(&vhost).await;
    assert!(!state.exists());
}

/// Both options have an effect in the foreground, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_in_the_foreground_has_the_same_limits() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let mut agent = Command::new("sleep").arg("60").kill_on_drop(true).spawn().unwrap();
    let pid = agent.id().unwrap().to_string();
    for (options, says) in [(["--release-after", "1s"], "has passed"), (["--while", &pid], "ended")]
    {
        let arguments = [&["hold", LOCK][..], &options].concat();
        let mut hold = lockkeeper(&vhost, &arguments).spawn().unwrap();
        let mut lines = BufReader::new(hold.stdout.take().unwrap()).lines();
        let mut line = async || lines.next_line().await.unwrap().unwrap_or_default();
        assert_eq!(line().await, "holding slot 1 of ci.deploy");
        if options[0] == "--while" {
            agent.kill().await.unwrap();
        }
        assert_eq!(line().await, "released slot 1 of ci.deploy");
        let ended = hold.wait_with_output().await.unwrap();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains(says), "{ended:?}");
    }
    is_free(&vhost).await;
}
