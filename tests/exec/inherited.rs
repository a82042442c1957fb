//! What the program that starts `exec` passes on to it: limits on processes, and how the
//! ends of children and other signals are handled. A limit is found before anything is held.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::{random, signal};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};

use crate::exec::commands::{Running, Scratch, child_of};
use crate::exec::{LOCK, create, lockkeeper, outcome, prefixed, run, succeed};

/// A copy of the program that every user may run. Removed at the end.
struct Copy(PathBuf);

impl Copy {
    fn make() -> Self {
        let folder = std::env::temp_dir().join(format!("lockkeeper-{}", random()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        let program = folder.join("lockkeeper");
        std::fs::copy(built::lockkeeper(), &program).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        Self(folder)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A user that has no processes.
const OTHER_USER: u32 = 64123;

/// Number of processes of this user, ended ones that are not reaped included.
fn processes_of(user: u32) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter(|entry| entry.metadata().is_ok_and(|process| process.uid() == user))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_limit_on_processes_exec_ends_with_the_cause_and_holds_nothing() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let copy = Copy::make();
    let program = copy.0.join("lockkeeper");
    // The limit does not apply to root. Another user has no processes yet.
    let id = std::process::Command::new("id").arg("-u").output().unwrap().stdout;
    let is_root = id.trim_ascii() == b"0";
    let (user, group) = (format!("--reuid={OTHER_USER}"), format!("--regid={OTHER_USER}"));
    let as_other = ["setpriv", &user, &group, "--clear-groups"];
    let user: &[&str] = if is_root { &as_other } else { &[] };
    let mut codes = Vec::new();
    for limit in 1..24 {
        // The shell's own name is the program that `prefixed` adds.
        let line = format!("ulimit -u {limit}; exec {} \"$@\"", program.display());
        let prefix = [user, &["bash", "-c", &line]].concat();
        let command = prefixed(&prefix, &vhost, &["exec", LOCK, "--no-wait", "--", "true"]);
        let ended = tokio::time::timeout(Duration::from_secs(60), outcome(command)).await;
        let ended = ended.unwrap_or_else(|_| panic!("it hangs at a limit of {limit}"));
        assert!(!ended.stderr.contains("panicked"), "{limit}: {ended:?}");
        let says_why = ["Resource temporarily unavailable", "no thread can be started"]
            .iter()
            .any(|cause| ended.stderr.contains(cause));
        assert!(ended.code == Some(0) || ended.code == Some(69) && says_why, "{limit}: {ended:?}");
        codes.push(ended.code);
        // A process that is left for the init process to reap counts against the limit.
        assert!(!is_root || processes_of(OTHER_USER) == 0, "{limit}: {ended:?}");
        // Nothing is held: the next client need not wait.
        let next = run(&vhost, &["exec", LOCK, "--no-wait", "--", "true"]).await;
        assert_eq!(next.code, Some(0), "after a limit of {limit}: {next:?}");
    }
    assert_eq!(codes[0], Some(69));
    assert!(!is_root || codes.last() == Some(&Some(0)), "{codes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_gets_no_answer_about_the_lock_unless_its_process_is_the_commands() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let (copy, scratch) = (Copy::make(), Scratch::new());
    let program = copy.0.join("lockkeeper");
    let program = program.to_str().unwrap();
    let other = if std::process::Command::new("id").arg("-u").output().unwrap().stdout == b"0\n" {
        "setpriv --reuid=64124 --regid=64124 --clear-groups"
    } else {
        ""
    };
    // Its own process may ask as another user.
    let script = format!("{other} {program} verify; echo $? $LOCK_SOCKET >\"$0\"; read end");
    let file = scratch.file("asked");
    let mut exec = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", &script, &file]);
    let mut exec = exec.stdin(Stdio::piped()).spawn().unwrap();
    eventually("it has asked", async || scratch.read("asked").ends_with('\n')).await;
    let said = scratch.read("asked");
    let (code, socket) = said.trim().split_once(' ').unwrap();
    assert_eq!(code, "0");
    // A stranger may not.
    let ask = |prefix: &str| {
        let line = format!("{prefix} {program} verify");
        std::process::Command::new("sh").args(["-c", &line]).env("LOCK_SOCKET", socket).output()
    };
    assert_eq!(ask("").unwrap().status.code(), Some(0));
    if !other.is_empty() {
        assert_eq!(ask(other).unwrap().status.code(), Some(69));
    }
    drop(exec.stdin.take());
    let _ = exec.wait().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guardian_needs_no_thread_to_end_the_command() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let script = "trap '' TERM; echo x >>\"$0\"; while :; do sleep 0.05; done";
    let file = scratch.file("began");
    let options = ["exec", LOCK, "--heartbeat", "2s", "--kill-after", "1s", "--"];
    let words = [&options[..], &["sh", "-c", script, &file]].concat();
    let exec = Running::start(&scratch, "exec", lockkeeper(&vhost, &words));
    eventually("the command runs", async || !scratch.read("began").is_empty()).await;
    let guardian = child_of(exec.pid());
    let threads = || std::fs::read_dir(format!("/proc/{guardian}/task")).map_or(0, Iterator::count);
    assert_eq!(threads(), 1);
    exec.signal("STOP");
    let mut most = 0;
    let ended = async || {
        most = most.max(threads());
        exec.said().contains("the command has ended")
    };
    eventually("the guardian has ended the command", ended).await;
    assert_eq!(most, 1);
    exec.until_it_says("lockkeeper exec does not answer").await;
    exec.signal("KILL");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_result_is_known_although_the_caller_ignores_the_ends_of_children() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let deaf = ["env", "--ignore-signal=CHLD"];
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)] {
        let command = prefixed(&deaf, &vhost, &["exec", LOCK, "--", "sh", "-c", script]);
        let ended = outcome(command).await;
        assert_eq!(ended.code, Some(code), "{script}: {ended:?}");
    }
    // The command itself waits for children as usual.
    let script = "grep SigIgn /proc/self/status; (exit 5); echo $?";
    let command = prefixed(&deaf, &vhost, &["exec", LOCK, "--", "sh", "-c", script]);
    let said = outcome(command).await.stdout;
    let ignored = said.split_whitespace().nth(1).unwrap();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    assert_eq!(ignored >> (nix::libc::SIGCHLD - 1) & 1, 0, "{said}");
    assert!(said.ends_with("\n5\n"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_signal_that_would_end_a_holder_releases_its_slot_first() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let signals = [
        "HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "PWR",
        "STKFLT", "XCPU",
    ];
    for name in signals {
        let scratch = Scratch::new();
        let file = std::fs::File::create(scratch.file("out")).unwrap();
        let prefix = ["env", "--default-signal"];
        let mut command = prefixed(&prefix, &vhost, &["hold", LOCK, "--timeout", "30s"]);
        let mut hold = command.stdout(file).spawn().unwrap();
        eventually("it holds", async || scratch.read("out").contains("holding")).await;
        signal(hold.id().unwrap(), name);
        let status = tokio::time::timeout(Duration::from_secs(30), hold.wait()).await.unwrap();
        assert_eq!(status.unwrap().code(), Some(0), "{name}");
        assert!(scratch.read("out").contains("released"), "{name}");
        succeed(&vhost, &["exec", LOCK, "--no-wait", "--", "true"]).await;
    }
}
