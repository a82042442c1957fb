//! The guardian: no command keeps running without supervision of its lock, whichever
//! process is killed.

use std::time::Duration;

use lockkeeper_testkit::environment::{signal, signal_group};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};

use crate::exec::commands::{Running, Scratch, WRITE, alive, child_of};
use crate::exec::{LOCK, create, lockkeeper};

#[tokio::test(flavor = "multi_thread")]
async fn killing_exec_kills_the_commands_whole_group_and_frees_the_slot() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let arguments = ["exec", LOCK, "--kill-after", "300ms", "--", "sh", "-c"];
    let deaf = format!("trap '' TERM; {WRITE}");
    for script in [WRITE, &deaf] {
        let known = scratch.holders();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let command = [&arguments[..], &[script, &file]].concat();
        let exec = Running::start(&scratch, "exec", lockkeeper(&vhost, &command));
        let holder = scratch.next_holder(&known).await;
        assert!(alive(&holder).len() >= 2, "shell, subshell: {:?}", alive(&holder));
        exec.signal("KILL");
        eventually("the whole group is gone", async || alive(&holder).is_empty()).await;
        exec.until_it_says("lockkeeper exec has ended").await;
        crate::exec::succeed(&vhost, &["exec", LOCK, "--timeout", "10s", "--", "true"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_the_guardian_kills_the_command() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let command = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", WRITE, &file]);
    let mut exec = Running::start(&scratch, "exec", command);
    let holder = scratch.next_holder(&[]).await;
    signal(child_of(exec.pid()), "KILL");
    assert_eq!(exec.code().await, Some(80));
    assert_eq!(alive(&holder), [0; 0], "no process is left when exec has ended");
    assert!(exec.said().contains("killed with its guardian"), "{}", exec.said());
    crate::exec::succeed(&vhost, &["exec", LOCK, "--no-wait", "--", "true"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_without_a_reader_delays_nothing() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    // Fills the pipe of stderr, which has no reader.
    let script = format!("(yes >&2) & {WRITE}");
    let mut command = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", &script, &file]);
    let exec = command.spawn().unwrap();
    let holder = scratch.next_holder(&[]).await;
    signal(exec.id().unwrap(), "KILL");
    eventually("the whole group is gone", async || alive(&holder).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_the_command_leaves_behind_are_reported() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let script = r#"echo "$LOCK_HOLDER_ID" >>"$0"; sleep 60 & exit 4"#;
    let command = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", script, &file]);
    let mut exec = Running::start(&scratch, "exec", command);
    assert_eq!(exec.code().await, Some(4));
    assert!(exec.said().contains("left processes behind"), "{}", exec.said());
    let left = alive(&scratch.holders()[0]);
    assert_eq!(left.len(), 1);
    signal(left[0], "KILL");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_stopped_and_continued_keeps_a_lock_that_is_held() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let arguments = ["exec", LOCK, "--heartbeat", "3s", "--", "sh", "-c", WRITE, &file];
    let mut exec = Running::start(&scratch, "exec", lockkeeper(&vhost, &arguments));
    scratch.next_holder(&[]).await;
    let guardian = child_of(exec.pid());
    signal_group(guardian, "STOP");
    // Longer than a proof is valid: the guardian's last proof has expired when it
    // resumes.
    tokio::time::sleep(Duration::from_secs(8)).await;
    signal_group(guardian, "CONT");
    let lines = scratch.read("register").lines().count();
    eventually("it goes on", async || scratch.read("register").lines().count() > lines + 20).await;
    exec.signal("TERM");
    assert_eq!(exec.code().await, Some(143), "{}", exec.said());
}
