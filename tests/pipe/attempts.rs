//! Which deliveries of `run` and `get --ack` count as attempts, and the exit code of a run
//! with dead letters.

use std::os::unix::fs::PermissionsExt;

use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::signal;
use lockkeeper_testkit::redis::{TestQueue, eventually};

use crate::exec::commands::Scratch;
use crate::pipe::acks::{Folder, lines, runner, seen};
use crate::pipe::{end, fill, finish, outcome, program, queue, run, shell, succeed};

/// Creates the queue and the one for dead letters.
async fn place() -> TestQueue {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let mut create = program(&place, built::lockkeeper());
    create.args(["queue", "create", "letters"]);
    assert_eq!(outcome(create).await.code, Some(0));
    place
}

async fn letters(place: &TestQueue) -> Vec<String> {
    let key = format!("{}:letters", place.queue.prefix());
    place.run(&["LRANGE", &key, "0", "-1"]).await
}

/// Prints which attempt it is.
const COUNT: [&str; 4] = ["--", "sh", "-c", "echo $QUEUE_DELIVERIES"];
const ONE_ATTEMPT: [&str; 5] = ["--no-wait", "--attempts", "1", "--dead-letter", "letters"];

/// Checks that no attempt with the only element was made so far, and makes the first.
async fn is_untried(place: &TestQueue) {
    let ran = run(place, "run", &[&ONE_ATTEMPT[..], &COUNT].concat()).await;
    assert_eq!((ran.code, ran.text()), (Some(75), "1\n"), "{ran:?}");
    assert_eq!(letters(place).await, [""; 0]);
    let seen = seen(place).await;
    assert_eq!((seen.length, seen.in_flight, seen.drift()), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_without_an_interpreter_gets_its_element() {
    let place = place().await;
    fill(&place, b"a\n").await;
    let scratch = Scratch::new();
    std::fs::write(scratch.file("job"), "cat; echo $1 $QUEUE_DELIVERIES\n").unwrap();
    std::fs::set_permissions(scratch.file("job"), PermissionsExt::from_mode(0o755)).unwrap();
    let ran = run(&place, "run", &["--no-wait", "--", &scratch.file("job"), "x"]).await;
    assert_eq!((ran.code, ran.text()), (Some(75), "ax 1\n"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_can_not_be_started_uses_up_no_attempt() {
    let place = place().await;
    fill(&place, b"a\n").await;
    for (command, code) in [("/no/such/command", 127), ("/etc/passwd", 126)].repeat(2) {
        let ran = run(&place, "run", &[&ONE_ATTEMPT[..], &["--", command]].concat()).await;
        assert_eq!(ran.code, Some(code), "{ran:?}");
    }
    is_untried(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_a_signal_to_run_ends_uses_up_no_attempt() {
    let (place, folder) = (place().await, Folder::new());
    fill(&place, b"a\n").await;
    for name in ["TERM", "INT", "HUP"] {
        let file = folder.file(name);
        let mut running = runner(&place, &ONE_ATTEMPT, "echo > \"$0\"; exec sleep 600", &file);
        let running = running.spawn().unwrap();
        eventually("the command runs", async || file.exists()).await;
        let pid = running.id().unwrap();
        let ended = tokio::spawn(finish(running));
        // The second one is forwarded.
        while !ended.is_finished() {
            signal(pid, name);
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        let ended = ended.await.unwrap();
        assert!(ended.code > Some(128), "{ended:?}");
        assert!(ended.stderr.contains("0 elements processed; 1 returned"), "{ended:?}");
    }
    is_untried(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_element_that_the_reader_of_get_did_not_take_was_not_tried() {
    let place = place().await;
    fill(&place, b"a\n").await;
    for line in [
        "lockkeeper queue get jobs --ack | sleep 0.3",
        "lockkeeper queue get jobs --ack >/dev/full",
    ] {
        let got = outcome(shell(&place, &format!("set -o pipefail; {line}"))).await;
        assert!(matches!(got.code, Some(141 | 73)), "{line}: {got:?}");
        assert_eq!(seen(&place).await.leases_ended, 1, "{line}");
    }
    let mut getting = queue(&place, "get", &["--ack"]).spawn().unwrap();
    let unread = getting.stdout.take();
    eventually("it is in flight", async || seen(&place).await.leases_ended == 0).await;
    end(getting, "TERM").await;
    drop(unread);
    is_untried(&place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_the_worker_died_with_counts() {
    let (place, folder) = (place().await, Folder::new());
    fill(&place, b"a\n").await;
    let file = folder.file("started");
    let mut running = runner(&place, &["--lease", "1s"], "echo > \"$0\"; exec sleep 5", &file);
    let running = running.spawn().unwrap();
    eventually("the command runs", async || file.exists()).await;
    end(running, "KILL").await;
    eventually("the lease ends", async || seen(&place).await.leases_ended == 1).await;
    let ran = run(&place, "run", &[&ONE_ATTEMPT[..], &COUNT].concat()).await;
    assert_eq!(ran.code, Some(85), "{ran:?}");
    assert!(
        ran.stderr.contains("its 1 attempt failed, or the worker died with the last one"),
        "{ran:?}"
    );
    assert_eq!((ran.text(), letters(&place).await), ("", vec!["a".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_finds_no_queue_stays_and_is_not_tried_again() {
    let (place, folder) = (place().await, Folder::new());
    fill(&place, b"a\n").await;
    let file = folder.file("log");
    let bound = format!("{}:letters:bound", place.queue.prefix());
    let script = r#"echo "$QUEUE_DELIVERIES" >> "$0"
        redis-cli --no-auth-warning -u "$REDIS_URL" del "$PRESSURE_PREFIX:letters:bound"; exit 3"#;
    let ran = outcome(runner(&place, &ONE_ATTEMPT, script, &file)).await;
    assert_eq!(ran.code, Some(75), "{ran:?}");
    assert!(ran.stderr.contains("the element can't be put into letters"), "{ran:?}");
    eventually("it comes again", async || seen(&place).await.leases_ended == 1).await;
    let () = place.run(&["SET", &bound, "0"]).await;
    let ran = outcome(runner(&place, &ONE_ATTEMPT, script, &file)).await;
    assert_eq!(ran.code, Some(85), "{ran:?}");
    assert!(ran.stderr.contains("0 elements processed; 1 moved as dead letters"), "{ran:?}");
    assert_eq!((lines(&file), letters(&place).await), (vec!["1".to_owned()], vec!["a".to_owned()]));
}
