//! Signals to `exec`: passed on while the command runs, and an end of waiting
//! before.

use std::time::{Duration, Instant};

use crate::commands::{Running, Scratch, WRITE, alive, child_of};
use crate::environment::signal;
use crate::support::rabbitmq::{Vhost, eventually};
use crate::{LOCK, create, lockkeeper, prefixed};

/// Whoever runs the tests may ignore some.
const ALL_DEFAULT: [&str; 2] = ["env", "--default-signal"];

#[tokio::test(flavor = "multi_thread")]
async fn signals_reach_the_command_and_not_only_its_first_process() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let signals = ["HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "CONT"];
    let script = r#"
        note() { for s in HUP INT QUIT USR1 USR2 WINCH CONT; do trap "echo $1$s >>$0" $s; done; }
        (note b; echo b >>"$0"; while :; do sleep 0.02; done) &
        note a; echo a >>"$0"; while :; do sleep 0.02; done"#;
    let file = scratch.file("heard");
    let arguments = ["exec", LOCK, "--", "sh", "-c", script, &file];
    let mut exec = Running::start(&scratch, "exec", prefixed(&ALL_DEFAULT, &vhost, &arguments));
    let heard = |line: &str| scratch.read("heard").lines().any(|l| l == line);
    eventually("the command runs", async || heard("a") && heard("b")).await;
    for signal in signals {
        exec.signal(signal);
        // What a shell starts in the background ignores these two.
        let second = !matches!(signal, "INT" | "QUIT");
        let both =
            async || heard(&format!("a{signal}")) && (!second || heard(&format!("b{signal}")));
        eventually(&format!("{signal} arrives"), both).await;
    }
    exec.signal("TERM");
    assert_eq!(exec.code().await, Some(143));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_waiting_promptly_and_leaves_nothing() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let holding = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", WRITE, &file]);
    let _holding = Running::start(&scratch, "holding", holding);
    let holder = scratch.next_holder(&[]).await;
    for (signal, code) in [("HUP", 129), ("INT", 130), ("QUIT", 131), ("TERM", 143)] {
        let command =
            prefixed(&ALL_DEFAULT, &vhost, &["exec", LOCK, "--", "touch", &scratch.file("ran")]);
        let mut waiting = Running::start(&scratch, "waiting", command);
        waiting.until_it_says("waiting for a slot").await;
        // One that asks for nothing is no reason to stop waiting.
        waiting.signal("USR1");
        let start = Instant::now();
        waiting.signal(signal);
        assert_eq!(waiting.code().await, Some(code), "{}", waiting.said());
        assert!(start.elapsed() < Duration::from_secs(1), "{signal} took {:?}", start.elapsed());
    }
    assert!(!alive(&holder).is_empty(), "the holder goes on");
    assert_eq!(scratch.read("ran"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_exec_was_started_to_ignore_stays_ignored() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let arguments = ["exec", LOCK, "--", "sh", "-c", WRITE, &file];
    let nohup = prefixed(&["env", "--ignore-signal=HUP"], &vhost, &arguments);
    let mut exec = Running::start(&scratch, "exec", nohup);
    let holder = scratch.next_holder(&[]).await;
    exec.signal("HUP");
    signal(child_of(exec.pid()), "HUP");
    assert!(!alive(&holder).is_empty());
    let lines = scratch.read("register").lines().count();
    eventually("it goes on", async || scratch.read("register").lines().count() > lines + 5).await;
    exec.signal("TERM");
    assert_eq!(exec.code().await, Some(143));
}
