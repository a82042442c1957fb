//! Every error has its own exit code and describes the next step. Contradictory options
//! are rejected.

use std::process::Stdio;

use lockkeeper_testkit::redis::TestQueue;

use crate::pipe::{Outcome, fill, outcome, put, queue, run, shell, succeed};

/// Checks the exit code and a part of the message, and that nothing was written.
fn is(outcome: &Outcome, code: i32, says: &str) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    assert!(outcome.stderr.contains(says), "{says:?} is not in {outcome:?}");
    assert_eq!(outcome.text(), "", "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_the_protocols_errors_has_an_exit_code_of_its_own() {
    let place = TestQueue::new().await;
    for verb in ["put", "get", "length", "closed", "close", "delete", "peek", "stat"] {
        is(&run(&place, verb, &[]).await, 81, "create it first");
    }
    succeed(&place, "create", &["--bound", "1"]).await;
    is(&run(&place, "create", &[]).await, 82, "exists already");
    is(&run(&place, "get", &["--no-wait"]).await, 75, "the queue is empty");
    is(&run(&place, "get", &["--timeout", "50ms"]).await, 75, "no element came");
    fill(&place, b"a\n").await;
    is(&put(&place, &["--no-wait"], b"b\n").await, 75, "the queue is full: wait for room");
    is(&put(&place, &["--timeout", "50ms"], b"b\n").await, 75, "there was no room");

    // Another client has both roles, and has set one of their ids.
    let () = place.run(&["DEL", &place.key(":producer_free"), &place.key(":consumer_free")]).await;
    let () = place.run(&["SET", &place.key(":producer"), "camera"]).await;
    let () = place.run(&["SET", &place.key(":consumer"), "camera"]).await;
    is(&put(&place, &["--no-wait"], b"b\n").await, 75, "camera is the queue's producer now");
    is(&run(&place, "close", &["--no-wait"]).await, 75, "camera is the queue's producer now");
    is(&run(&place, "get", &["--no-wait"]).await, 75, "camera is the queue's consumer now");
    is(&run(&place, "get", &["--timeout", "50ms"]).await, 75, "camera held the consumer role");
    let () = place.run(&["LPUSH", &place.key(":producer_free"), "1"]).await;
    let () = place.run(&["LPUSH", &place.key(":consumer_free"), "1"]).await;

    succeed(&place, "close", &[]).await;
    is(&put(&place, &[], b"b\n").await, 83, "the queue is closed");
    is(&run(&place, "close", &[]).await, 83, "the queue is closed");
    is(&run(&place, "delete", &[]).await, 64, "a confirmation needs a terminal: give --yes");
    succeed(&place, "delete", &["--yes"]).await;
    assert_eq!(place.present().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_or_refuses_is_69_for_every_verb() {
    let place = TestQueue::new().await;
    let nobody = "redis://127.0.0.1:1";
    let wrong = place.url.replace("canary-", "wrong-");
    for verb in
        ["create", "put", "get", "length", "exists", "closed", "close", "delete", "peek", "stat"]
    {
        is(&run(&place, verb, &["--url", nobody]).await, 69, "can't be reached (127.0.0.1:1: ");
        is(&run(&place, verb, &["--url", &wrong]).await, 69, "refused the user or the password");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_arguments_are_rejected_before_anything_happens() {
    let place = TestQueue::new().await;
    let table: &[(&str, &[&str], &str)] = &[
        ("create", &["--bound=-1"], "--bound"),
        ("create", &["--bound", "3000000000"], "a bound is a number from 0"),
        ("put", &["--size", "0"], "a number of bytes"),
        ("put", &["--size", "4K", "-0"], "cannot be used with"),
        ("put", &["--timeout", "1s", "--no-wait"], "cannot be used with"),
        ("get", &["--raw", "-0"], "cannot be used with"),
        ("get", &["--timeout", "soon"], "expected a duration"),
        ("get", &["-n", "demo"], "pq/NAME"),
        ("get", &["--url", "redis://h", "--server", "h"], "cannot be used with"),
        ("get", &["--url", "http://h"], "expected redis://"),
        ("get", &["--db=-1"], "--db"),
        ("get", &["--prefix", ""], "it is empty"),
        ("stat", &["-o", "xml"], "possible values"),
    ];
    for (verb, arguments, says) in table {
        is(&run(&place, verb, arguments).await, 64, says);
    }
    for (variable, value) in [("REDIS_PORT", "x"), ("REDIS_DB", "-1"), ("REDIS_PORT", "0")] {
        let mut command = queue(&place, "length", &[]);
        command.env_remove("REDIS_URL").env(variable, value);
        is(&outcome(command).await, 64, variable);
    }
    let resource = |verb: &'static str| {
        let line = format!("lockkeeper queue {verb} pq/jobs </dev/null");
        shell(&place, &line)
    };
    is(&outcome(resource("create")).await, 64, "created by the operator");
    is(&outcome(resource("put --create 3")).await, 64, "created by the operator");
    is(&outcome(resource("get --db 3")).await, 64, "leave them out");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_named_by_a_url_or_by_the_protocols_variables() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "3"]).await;
    let server = place.settings();
    let by_parts = |number: i64| {
        let mut command = queue(&place, "exists", &[]);
        command.env_remove("REDIS_URL").env("REDIS_SERVER", &server.host);
        command.env("REDIS_PORT", server.port.to_string()).env("REDIS_DB", number.to_string());
        command
    };
    // The test server requires a password, which only a URL can contain: the rejection
    // shows that the server was found.
    let found = outcome(by_parts(0)).await;
    is(&found, 69, "Redis refused");
    let mut elsewhere = by_parts(0);
    elsewhere.args(["--port", "1"]);
    is(&outcome(elsewhere).await, 69, "can't be reached");
    // The command line takes precedence over the environment.
    is(&run(&place, "exists", &["--port", "1"]).await, 69, "can't be reached");
    let elsewhere = run(&place, "exists", &["--db", "3000"]).await;
    assert_eq!((elsewhere.code, elsewhere.text()), (Some(1), "false\n"), "{elsewhere:?}");
    let elsewhere = run(&place, "exists", &["--prefix", "other"]).await;
    assert_eq!((elsewhere.code, elsewhere.text()), (Some(1), "false\n"), "{elsewhere:?}");
    let there = run(&place, "exists", &["--url", &place.url]).await;
    assert_eq!((there.code, there.text()), (Some(0), "true\n"), "{there:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn input_that_can_not_be_read_is_74_and_leaves_the_queue_open() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let mut command = queue(&place, "put", &[]);
    command.stdin(Stdio::from(std::fs::File::open("/").unwrap()));
    is(&outcome(command).await, 74, "Is a directory");
    assert_eq!(run(&place, "closed", &[]).await.code, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_element_that_is_longer_than_redis_takes_is_65_and_those_before_are_put() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let line = "(echo short; head -c 537000000 /dev/zero) | lockkeeper queue put jobs";
    let outcome = outcome(shell(&place, line)).await;
    is(&outcome, 65, "an element is longer than 536870912 bytes");
    let account = "1 element (5 bytes) put; 0 elements and a beginning read and not put; the queue was not closed";
    assert!(outcome.stderr.contains(account), "{outcome:?}");
    assert_eq!(run(&place, "peek", &[]).await.text(), "short\n");
}
