//! `exec` at a terminal: whose the keyboard is, and what is shown meanwhile. The
//! terminal is `script`'s.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::commands::{Running, Scratch, WRITE, alive};
use crate::environment::signal;
use crate::support::rabbitmq::{Vhost, eventually};
use crate::{LOCK, create, lockkeeper};

/// Runs a line of shell at a terminal of its own, whose output goes to `file`.
fn at_a_terminal(vhost: &Vhost, scratch: &Scratch, line: &str) -> Child {
    let bare = lockkeeper(vhost, &[]);
    // Whoever runs the tests in the background may have told us to ignore the keys.
    let mut command = Command::new("env");
    let variables =
        bare.as_std().get_envs().filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned())));
    let line = line.replace("lockkeeper", env!("CARGO_BIN_EXE_lockkeeper"));
    command
        .args(["--default-signal=INT,QUIT,HUP", "script"])
        .args(["--quiet", "--return", "--flush", "--command", &line, &scratch.file("shown")])
        .envs(variables)
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    command.spawn().unwrap()
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

#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_the_background_reads_the_keyboard_once_it_is_brought_to_the_front() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let script = scratch.file("script");
    let exec = format!("{} exec {LOCK}", env!("CARGO_BIN_EXE_lockkeeper"));
    let ask = "sh -c 'echo ask; read a; echo inner-$a'";
    std::fs::write(&script, format!("set -m\n{exec} -- {ask} &\nread x\nfg\necho code-$?"))
        .unwrap();
    let line = format!("bash {script}");
    let mut terminal = at_a_terminal(&vhost, &scratch, &line);
    let mut keyboard = terminal.stdin.take().unwrap();
    let shown = |text: &str| scratch.read("shown").contains(text);
    eventually("it asks", async || shown("ask")).await;
    keyboard.write_all(b"for the shell\n").await.unwrap();
    eventually("it is in front", async || shown("-- sh -c")).await;
    keyboard.write_all(b"one\n").await.unwrap();
    eventually("the command has read", async || shown("inner-one") && shown("code-0")).await;
    assert!(terminal.wait().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn control_c_ends_the_command_and_control_z_does_not_stop_it() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let register = scratch.file("register");
    let script = scratch.file("script");
    std::fs::write(&script, WRITE).unwrap();
    let line = format!("lockkeeper exec {LOCK} -- sh -c \"$(cat {script})\" {register}");
    let mut terminal = at_a_terminal(&vhost, &scratch, &line);
    let mut keyboard = terminal.stdin.take().unwrap();
    scratch.next_holder(&[]).await;
    keyboard.write_all(b"\x1a").await.unwrap();
    eventually("the terminal shows the key", async || scratch.read("shown").contains("^Z")).await;
    let lines = scratch.read("register").lines().count();
    eventually("it goes on", async || scratch.read("register").lines().count() > lines + 20).await;
    keyboard.write_all(b"\x03").await.unwrap();
    assert_eq!(terminal.wait().await.unwrap().code(), Some(130), "{}", scratch.read("shown"));
    // What a shell starts in the background ignores the key.
    for pid in alive(&scratch.holders()[0]) {
        signal(pid, "KILL");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_at_a_terminal_sees_who_holds_what_since_when() {
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
    // What was shown is gone when the command begins.
    let shown = scratch.read("shown");
    assert!(shown.rsplit("\x1b[2K").next().unwrap().contains("done"), "{shown:?}");
}
