//! The guardian: nobody goes on under a lock that nobody watches, whoever of the
//! processes between is killed.

use crate::commands::{Running, Scratch, WRITE, alive, child_of};
use crate::environment::signal;
use crate::support::rabbitmq::{Vhost, eventually};
use crate::{LOCK, create, lockkeeper};

#[tokio::test(flavor = "multi_thread")]
async fn whoever_kills_exec_kills_the_commands_whole_group_and_the_slot_is_free() {
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
        assert!(alive(&holder).len() >= 3, "guardian, shell, subshell: {:?}", alive(&holder));
        exec.signal("KILL");
        eventually("the whole group is gone", async || alive(&holder).is_empty()).await;
        exec.until_it_says("lockkeeper exec has ended").await;
        crate::succeed(&vhost, &["exec", LOCK, "--timeout", "10s", "--", "true"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_kills_the_guardian_kills_the_command() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let command = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", WRITE, &file]);
    let mut exec = Running::start(&scratch, "exec", command);
    let holder = scratch.next_holder(&[]).await;
    signal(child_of(exec.pid()), "KILL");
    assert_eq!(exec.code().await, Some(80));
    assert_eq!(alive(&holder), [0; 0], "nobody is left when exec has ended");
    assert!(exec.said().contains("killed with its guardian"), "{}", exec.said());
    crate::succeed(&vhost, &["exec", LOCK, "--no-wait", "--", "true"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_has_stopped_reading_delays_nothing() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    // Fills the pipe of standard error, which nobody reads.
    let script = format!("(yes >&2) & {WRITE}");
    let mut command = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", &script, &file]);
    let exec = command.spawn().unwrap();
    let holder = scratch.next_holder(&[]).await;
    signal(exec.id().unwrap(), "KILL");
    eventually("the whole group is gone", async || alive(&holder).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_command_leaves_behind_is_spoken_of() {
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
