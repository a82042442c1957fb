//! Signals to `exec`: forwarded while the command runs, and ending the wait before.

use std::time::Duration;

use lockkeeper_testkit::environment::signal;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};

use crate::exec::commands::{Running, Scratch, WRITE, alive, child_of, has_children};
use crate::exec::{LOCK, create, lockkeeper, prefixed, succeed};

/// The environment of the tests may ignore some signals.
const ALL_DEFAULT: [&str; 2] = ["env", "--default-signal"];

#[tokio::test(flavor = "multi_thread")]
async fn signals_reach_the_command_and_not_only_its_first_process() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let signals = ["HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "CONT"];
    let script = r#"
        note() { for s in HUP INT QUIT USR1 USR2 WINCH CONT; do trap "echo $1$s >>\"\$0\"" $s; done; }
        (note b; echo b >>"$0"; while :; do sleep 0.02; done) &
        note a; echo a >>"$0"; while :; do sleep 0.02; done"#;
    let file = scratch.file("heard");
    let arguments = ["exec", LOCK, "--", "sh", "-c", script, &file];
    let mut exec = Running::start(&scratch, "exec", prefixed(&ALL_DEFAULT, &vhost, &arguments));
    let heard = |line: &str| scratch.read("heard").lines().any(|l| l == line);
    eventually("the command runs", async || heard("a") && heard("b")).await;
    for signal in signals {
        exec.signal(signal);
        // Background processes of a shell ignore these two.
        let second = !matches!(signal, "INT" | "QUIT");
        let both =
            async || heard(&format!("a{signal}")) && (!second || heard(&format!("b{signal}")));
        eventually(&format!("{signal} arrives"), both).await;
    }
    exec.signal("TERM");
    assert_eq!(exec.code().await, Some(143));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_waiting_and_leaves_nothing() {
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
        // A signal that does not request to end must not stop the wait.
        waiting.signal("USR1");
        waiting.signal(signal);
        assert_eq!(waiting.code().await, Some(code), "{}", waiting.said());
    }
    assert!(!alive(&holder).is_empty(), "the holder goes on");
    assert_eq!(scratch.read("ran"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_command_starts_is_neither_lost_nor_called_a_loss() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let script = r#"echo began >>"$0"; exec sleep 60"#;
    let mut before = 0;
    for round in 0..24 {
        let scratch = Scratch::new();
        let arguments = ["exec", LOCK, "--", "sh", "-c", script, &scratch.file("began")];
        let command = prefixed(&ALL_DEFAULT, &vhost, &arguments);
        let mut exec = Running::start(&scratch, "exec", command);
        while !has_children(exec.pid()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // More samples early, when more happens.
        tokio::time::sleep(Duration::from_micros(round * round * 100)).await;
        exec.signal("TERM");
        // Each of them acquired the lock: the previous one has released it.
        assert_eq!(exec.code().await, Some(143), "round {round}: {}", exec.said());
        if exec.said().contains("before the command began") {
            assert_eq!(scratch.read("began"), "", "round {round}");
            before += 1;
        }
    }
    println!("{before} of 24 signals came before the command began");
    succeed(&vhost, &["exec", LOCK, "--no-wait", "--", "true"]).await;
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
