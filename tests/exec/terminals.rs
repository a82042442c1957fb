//! `exec` on a terminal: which process owns the keyboard, and the displayed progress.
//! `script` provides the terminal.

use std::path::Path;
use std::process::Stdio;

use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::{signal, variable};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::exec::commands::{Running, Scratch, WRITE, alive};
use crate::exec::{LOCK, create, lockkeeper, succeed};

/// Runs a shell line on a separate terminal, whose output goes to the file `shown`. In
/// the line, `lockkeeper` is this build, and `$SCRATCH` is the test's directory.
fn at_a_terminal(vhost: &Vhost, scratch: &Scratch, line: &str) -> Child {
    let bare = lockkeeper(vhost, &[]);
    // If the tests run in the background, the signals of keys may be ignored.
    let mut command = Command::new("env");
    let variables =
        bare.as_std().get_envs().filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned())));
    let folder = Path::new(built::lockkeeper()).parent().unwrap();
    command
        .args(["--default-signal=INT,QUIT,HUP", "script"])
        .args(["--quiet", "--return", "--flush", "--command", line, &scratch.file("shown")])
        .envs(variables)
        .env("SHELL", "/bin/sh")
        // Without it, no progress is drawn.
        .env("TERM", "xterm")
        .env("PATH", format!("{}:{}", folder.display(), variable("PATH")))
        .env("SCRATCH", scratch.file(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    command.spawn().unwrap()
}

/// Runs a bash script with job control in the same way.
fn with_job_control(vhost: &Vhost, scratch: &Scratch, script: &str) -> Child {
    std::fs::write(scratch.file("script"), format!("set -m\n{script}")).unwrap();
    at_a_terminal(vhost, scratch, "bash \"$SCRATCH/script\"")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_reads_the_keyboard_and_gives_it_back() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let ask = "sh -c 'echo a\"\"sk; read a; echo inner-$a'";
    let line = format!("lockkeeper exec {LOCK} -- {ask}; echo code-$?; read b; echo outer-$b");
    let mut terminal = at_a_terminal(&vhost, &scratch, &line);
    let mut keyboard = terminal.stdin.take().unwrap();
    let shown = |text: &str| scratch.read("shown").contains(text);
    eventually("it asks", async || shown("ask")).await;
    keyboard.write_all(b"one\n").await.unwrap();
    eventually("the command has read", async || shown("inner-one") && shown("code-0")).await;
    keyboard.write_all(b"two\n").await.unwrap();
    eventually("the shell has read", async || shown("outer-two")).await;
    assert!(terminal.wait().await.unwrap().success());
}

/// The message of `exec` about a command that is stopped in the background.
const STOPPED: &str = "stopped until it may use the terminal";

#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_the_background_reads_the_keyboard_once_it_is_brought_to_the_front() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let exec = format!("lockkeeper exec {LOCK} -- sh -c 'read a; echo inner-$a'");
    let script = format!(
        "{exec} &
        read x; echo shell-$x; read y; echo shell-$y
        fg
        echo code-$?; read z; echo shell-$z"
    );
    let mut terminal = with_job_control(&vhost, &scratch, &script);
    let mut keyboard = terminal.stdin.take().unwrap();
    let shown = |text: &str| scratch.read("shown").contains(text);
    eventually("the command wants to read", async || shown(STOPPED)).await;
    // The terminal stays with the shell, however often exec checks.
    for key in ["one", "two"] {
        keyboard.write_all(format!("{key}\n").as_bytes()).await.unwrap();
        eventually("the shell has read", async || shown(&format!("shell-{key}"))).await;
    }
    keyboard.write_all(b"three\n").await.unwrap();
    eventually("the command has read", async || shown("inner-three") && shown("code-0")).await;
    keyboard.write_all(b"four\n").await.unwrap();
    eventually("the shell has read again", async || shown("shell-four")).await;
    assert!(terminal.wait().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_a_pipeline_reads_the_keyboard_when_it_wants_to() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let ask = "echo a\"\"sk; read a </dev/tty; echo inner-$a";
    for exec in [
        format!("lockkeeper exec {LOCK} -- sh -c '{ask}' | cat"),
        format!("lockkeeper exec {LOCK} -- sh -c '{ask}' </dev/null"),
    ] {
        let scratch = Scratch::new();
        let line = format!("{exec}; read b; echo outer-$b");
        let mut terminal = at_a_terminal(&vhost, &scratch, &line);
        let mut keyboard = terminal.stdin.take().unwrap();
        let shown = |text: &str| scratch.read("shown").contains(text);
        eventually("it asks", async || shown("ask")).await;
        keyboard.write_all(b"one\n").await.unwrap();
        eventually("the command has read", async || shown("inner-one")).await;
        keyboard.write_all(b"two\n").await.unwrap();
        eventually("the shell has read", async || shown("outer-two")).await;
        assert!(terminal.wait().await.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_command_ends_with_its_terminal_and_frees_the_lock() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let script = format!("lockkeeper exec {LOCK} -- sh -c 'read a' &\nwait");
    let mut terminal = with_job_control(&vhost, &scratch, &script);
    let shown = |text: &str| scratch.read("shown").contains(text);
    eventually("the command wants to read", async || shown(STOPPED)).await;
    // The window is closed. The shell ends with it, without notifying its jobs.
    terminal.kill().await.unwrap();
    succeed(&vhost, &["exec", LOCK, "--timeout", "15s", "--", "true"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_c_ends_the_command_and_control_z_does_not_stop_it() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    std::fs::write(scratch.file("script"), WRITE).unwrap();
    let command = "sh -c \"$(cat \"$SCRATCH/script\")\" \"$SCRATCH/register\"";
    let line = format!("lockkeeper exec {LOCK} -- {command}");
    let mut terminal = at_a_terminal(&vhost, &scratch, &line);
    let mut keyboard = terminal.stdin.take().unwrap();
    scratch.next_holder(&[]).await;
    keyboard.write_all(b"\x1a").await.unwrap();
    eventually("the terminal shows the key", async || scratch.read("shown").contains("^Z")).await;
    let lines = scratch.read("register").lines().count();
    eventually("it goes on", async || scratch.read("register").lines().count() > lines + 20).await;
    keyboard.write_all(b"\x03").await.unwrap();
    assert_eq!(terminal.wait().await.unwrap().code(), Some(130), "{}", scratch.read("shown"));
    // Background processes of a shell ignore the key's signal.
    for pid in alive(&scratch.holders()[0]) {
        signal(pid, "KILL");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_terminal_shows_the_holders_and_since_when_they_hold() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let holding = ["exec", LOCK, "--identity", "alice", "--"];
    let file = scratch.file("register");
    let command = [&holding[..], &["sh", "-c", WRITE, &file]].concat();
    let holding = Running::start(&scratch, "holding", lockkeeper(&vhost, &command));
    scratch.next_holder(&[]).await;
    let line = format!("lockkeeper exec {LOCK} -- echo done");
    let mut terminal = at_a_terminal(&vhost, &scratch, &line);
    eventually("it is shown", async || {
        let shown = scratch.read("shown");
        shown.contains("1 of 1 held, 1 by alice since 2")
    })
    .await;
    holding.signal("TERM");
    assert!(terminal.wait().await.unwrap().success());
    // The progress is removed when the command starts.
    let shown = scratch.read("shown");
    assert!(shown.rsplit("\x1b[2K").next().unwrap().contains("done"), "{shown:?}");
}
