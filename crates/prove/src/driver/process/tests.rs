//! Tests drivers that are one line of shell, each with one error.

use std::sync::Mutex;

use super::*;
use crate::driver::message::Done;
use crate::history::Verb;

const LONG: Duration = Duration::from_secs(20);

fn request(verb: Verb) -> Request {
    Request { verb, lock: "l".to_owned(), wait_ms: None, slots: None }
}

fn start(command: &str) -> (Driver, Arc<Mutex<Vec<Line>>>) {
    let seen: Arc<Mutex<Vec<Line>>> = Arc::default();
    let listener: Listener = {
        let seen = Arc::clone(&seen);
        Arc::new(move |line: &Line| seen.lock().unwrap().push(line.clone()))
    };
    (Driver::start(command, &vec![], listener).unwrap(), seen)
}

async fn first_error(command: &str) -> DriverError {
    start(command).0.ask(&request(Verb::Count), LONG).await.unwrap_err()
}

#[tokio::test]
async fn answers_come_in_order_and_lost_lines_go_to_the_listener() {
    let (mut driver, seen) = start(
        r#"sh -c 'read a; echo "{\"ok\":{\"slot\":2}}"; echo "{\"lost\":\"cut\"}"; read a; echo; echo "{\"fail\":\"lost\"}"; cat'"#,
    );
    let ok = Line::Ok(Done { slot: Some(2), ..Done::default() });
    assert_eq!(driver.ask(&request(Verb::Acquire), LONG).await, Ok(ok.clone()));
    let fail = Line::Fail("lost".to_owned());
    assert_eq!(driver.ask(&request(Verb::Verify), LONG).await, Ok(fail.clone()));
    assert_eq!(*seen.lock().unwrap(), [ok, Line::Lost("cut".to_owned()), fail]);
}

#[tokio::test]
async fn a_driver_receives_its_environment() {
    let environment = vec![("AMQP_URL".to_owned(), "amqp://x".to_owned())];
    let command = r#"sh -c 'read a; echo "{\"fail\":\"$AMQP_URL\"}"'"#;
    let mut driver = Driver::start(command, &environment, Arc::new(|_| ())).unwrap();
    let answer = driver.ask(&request(Verb::Count), LONG).await;
    assert_eq!(answer, Ok(Line::Fail("amqp://x".to_owned())));
}

#[tokio::test]
async fn a_line_that_is_not_json_is_shown_truncated() {
    let error = first_error(r#"sh -c 'read a; printf "connected %01000d\n" 7; cat'"#).await;
    let DriverError::NotAnAnswer { line, why } = &error else { panic!("{error:?}") };
    assert!(line.starts_with("connected 000") && line.chars().count() == SHOWN + 1, "{line}");
    assert!(why.starts_with("not JSON"), "{why}");
    assert!(error.to_string().contains("everything else to stderr"));
}

#[tokio::test]
async fn an_endless_line_is_rejected() {
    let error = first_error("sh -c 'read a; yes | tr -d \"\\n\"'").await;
    assert!(matches!(error, DriverError::NotAnAnswer { .. }), "{error:?}");
}

#[tokio::test]
async fn invalid_json_answers_are_rejected_with_the_reason() {
    for (written, expected) in [
        (r#"{\"done\":{}}"#, "unknown variant `done`, expected one of `ok`, `fail`"),
        (r#"{\"ok\":true}"#, "invalid type: boolean"),
        (r#"{\"ok\":{\"slot\":\"2\"}}"#, "expected u32"),
    ] {
        let error = first_error(&format!(r#"sh -c 'read a; echo "{written}"; cat'"#)).await;
        let DriverError::NotAnAnswer { why, .. } = &error else { panic!("{error:?}") };
        assert!(why.contains(expected), "{why}");
    }
}

#[tokio::test]
async fn more_answers_than_requests_are_an_error() {
    let early = r#"sh -c 'echo "{\"ok\":{}}" >&1; sleep 100'"#;
    let (mut driver, seen) = start(early);
    while seen.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let error = driver.ask(&request(Verb::Count), LONG).await.unwrap_err();
    assert!(matches!(error, DriverError::Unrequested { .. }), "{error:?}");
    let (mut driver, seen) =
        start(r#"sh -c 'read a; echo "{\"ok\":{}}"; echo "{\"ok\":{}}"; cat'"#);
    driver.ask(&request(Verb::Count), LONG).await.unwrap();
    while seen.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    let error = driver.ask(&request(Verb::Count), LONG).await.unwrap_err();
    assert!(matches!(error, DriverError::Unrequested { .. }), "{error:?}");
}

#[tokio::test]
async fn the_end_of_a_driver_is_reported_with_its_status_and_stderr() {
    let error =
        first_error("sh -c 'read a; echo first >&2; echo no module pika >&2; exit 3'").await;
    let DriverError::Ended { how, stderr } = &error else { panic!("{error:?}") };
    assert_eq!(how, "ended with exit code 3");
    assert!(stderr.ends_with("no module pika"), "{stderr}");
    let error = first_error("no-such-program-here").await;
    assert!(error.to_string().contains("exit code 127"), "{error}");
    let error = first_error("sh -c 'kill -9 $$'").await;
    assert!(error.to_string().contains("signal: 9"), "{error}");
}

#[tokio::test]
async fn a_driver_that_closes_stdout_but_continues_is_killed() {
    let error = first_error("sh -c 'exec >&-; exec sleep 100'").await;
    assert!(error.to_string().contains("kept running"), "{error}");
}

#[tokio::test]
async fn a_missing_answer_is_an_error_for_all_later_calls() {
    let (mut driver, _) = start("sh -c 'echo thinking >&2; sleep 100'");
    while driver.stderr().await.is_empty() {
        tokio::task::yield_now().await;
    }
    let error = driver.ask(&request(Verb::Count), Duration::from_millis(50)).await.unwrap_err();
    let DriverError::NoAnswer { request: asked, stderr, .. } = &error else { panic!("{error:?}") };
    assert_eq!(asked, r#"{"do":"count","lock":"l"}"#);
    assert_eq!(stderr, "thinking");
    assert_eq!(driver.ask(&request(Verb::Count), LONG).await, Err(error));
}

#[tokio::test]
async fn kill_ends_the_children_too() {
    let (mut driver, _) = start(r"sh -c 'sleep 100 & echo $! >&2; wait'");
    let child: i32 = loop {
        match driver.stderr().await.parse() {
            Ok(child) => break child,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    driver.kill().await;
    // Empty without its memory, which the kernel frees before its files. While no core is free,
    // the process may continue to end for longer.
    let command = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
    assert_eq!(command, "");
    assert!(driver.ask(&request(Verb::Count), LONG).await.is_err());
}

#[tokio::test]
async fn a_paused_driver_answers_after_it_is_resumed() {
    let (mut driver, seen) =
        start(r#"sh -c 'echo on >&2; while read a; do echo "{\"ok\":{}}"; done'"#);
    while driver.stderr().await.is_empty() {
        tokio::task::yield_now().await;
    }
    let control = driver.control();
    control.pause();
    let resume = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(seen.lock().unwrap().is_empty(), "answered while it was paused");
        control.resume();
    };
    let request = request(Verb::Count);
    let (answer, ()) = tokio::join!(driver.ask(&request, LONG), resume);
    assert!(answer.is_ok(), "{answer:?}");
}

#[tokio::test]
async fn only_the_last_part_of_stderr_is_kept() {
    let (mut driver, _) =
        start("sh -c 'head -c 200000 /dev/zero | tr \"\\0\" x >&2; echo end >&2'");
    driver.ended().await;
    let stderr = driver.stderr().await;
    assert!(stderr.ends_with("xend") && stderr.len() <= super::super::group::KEPT);
}
