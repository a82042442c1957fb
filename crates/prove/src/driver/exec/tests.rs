//! Tests commands that are one line of shell. Their witness is a line of shell too, because the
//! test binary has no subcommand `witness`.

use std::sync::Mutex;

use super::*;

const LONG: Duration = Duration::from_secs(20);

/// A witness in shell: bash connects to port $1.
const WITNESS: &str = r#"
exec 3<>/dev/tcp/127.0.0.1/$1
printf '{"slot":"%s","fence":null,"token":null}\n' "$SLOT" >&3
exec cat <&3
"#;

struct Tested {
    exec: Exec,
    seen: Arc<Mutex<Vec<Line>>>,
}

fn tested(command: &str) -> Tested {
    let seen: Arc<Mutex<Vec<Line>>> = Arc::default();
    let listener: Listener = {
        let seen = Arc::clone(&seen);
        Arc::new(move |line: &Line| seen.lock().unwrap().push(line.clone()))
    };
    let options = ExecOptions {
        command: command.to_owned(),
        environment: vec![("WITNESS".to_owned(), WITNESS.to_owned())],
        variables: Variables { slot_env: Some("SLOT".to_owned()), ..Variables::default() },
        program: "prove".into(),
    };
    Tested { exec: Exec::new(options, listener).unwrap(), seen }
}

/// Returns a command that runs the script as its witness. `{work}` passes the port to the
/// script.
fn under(before: &str, after: &str) -> String {
    // $0 is x, $1 the lock, $2 `prove`, $3 `witness`, $4 the port.
    format!(r#"bash -c '{before} bash -c "$WITNESS" w "$4"; {after}' x {{lock}} {{work}}"#)
}

fn request(verb: Verb) -> Request {
    Request { verb, lock: "l".to_owned(), wait_ms: Some(0), slots: None }
}

#[tokio::test]
async fn the_lock_is_held_while_the_witness_runs() {
    let mut tested = tested(&under("SLOT=3", "exit 0"));
    let ok = Line::Ok(Done { slot: Some(3), ..Done::default() });
    assert_eq!(tested.exec.ask(&request(Verb::Acquire), LONG).await, Ok(ok.clone()));
    let again = tested.exec.ask(&request(Verb::Acquire), LONG).await;
    assert_eq!(again, Ok(Line::Fail("this process already holds the lock".to_owned())));
    let released = Line::Ok(Done::default());
    assert_eq!(tested.exec.ask(&request(Verb::Release), LONG).await, Ok(released.clone()));
    assert_eq!(tested.exec.ask(&request(Verb::Acquire), LONG).await, Ok(ok.clone()));
    tested.exec.kill().await;
    let seen = tested.seen.lock().unwrap();
    assert_eq!((&seen[0], &seen[2], &seen[3]), (&ok, &released, &ok));
    assert_eq!(seen.len(), 4, "a kill is no loss: {seen:?}");
}

#[tokio::test]
async fn a_command_that_ends_its_work_early_reports_a_loss() {
    let mut tested = tested(&under("SLOT=1 timeout 0.2", "exit 80"));
    let granted = tested.exec.ask(&request(Verb::Acquire), LONG).await.unwrap();
    assert!(matches!(granted, Line::Ok(_)), "{granted:?}");
    while tested.seen.lock().unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(matches!(tested.seen.lock().unwrap()[1], Line::Lost(_)));
    let released = tested.exec.ask(&request(Verb::Release), LONG).await.unwrap();
    assert!(matches!(released, Line::Fail(_)), "{released:?}");
}

#[tokio::test]
async fn work_that_ends_with_its_killed_command_is_a_loss_and_other_work_is_not() {
    for (before, ends) in [("SLOT=1 exec", true), ("SLOT=1", false)] {
        let mut tested = tested(&under(before, "exit 0"));
        tested.exec.ask(&request(Verb::Acquire), LONG).await.unwrap();
        let limit = if ends { LONG } else { Duration::from_millis(300) };
        tested.exec.kill_alone(limit).await;
        let seen = |count: usize| tested.seen.lock().unwrap().len() == count;
        assert!(seen(if ends { 2 } else { 1 }), "{before}: {:?}", tested.seen);
        tested.exec.kill().await;
        let lost = tested.seen.lock().unwrap().iter().any(|line| matches!(line, Line::Lost(_)));
        assert_eq!(lost, ends, "{before}");
    }
}

#[tokio::test]
async fn an_exit_before_the_witness_starts_is_a_refusal() {
    let ask = async |command: &str| {
        tested(&format!("sh -c '{command}' {{lock}} {{work}}"))
            .exec
            .ask(&request(Verb::Acquire), LONG)
            .await
    };
    assert_eq!(ask("exit 75").await, Ok(Line::Fail(FULL.to_owned())));
    let refused = ask("echo no broker >&2; exit 69").await;
    let expected = "the command ended with exit code 69: no broker";
    assert_eq!(refused, Ok(Line::Fail(expected.to_owned())));
    let without = ask("exit 0").await.unwrap_err().to_string();
    assert!(without.contains("ended with exit code 0 before it ran {work}"), "{without}");
}

#[tokio::test]
async fn a_command_that_exceeds_its_time_limit_is_stopped() {
    let mut tested = tested("sh -c 'exec sleep 100' {lock} {work}");
    let answer = tested.exec.ask(&request(Verb::Acquire), LONG).await;
    assert_eq!(answer, Ok(Line::Fail(FULL.to_owned())));
}

#[tokio::test]
async fn a_release_with_another_exit_code_is_uncertain() {
    let mut tested = tested(&under("SLOT=1", "echo late >&2; exit 69"));
    tested.exec.ask(&request(Verb::Acquire), LONG).await.unwrap();
    let released = tested.exec.ask(&request(Verb::Release), LONG).await;
    let expected = "the command ended with exit code 69: late";
    assert_eq!(released, Ok(Line::Info(expected.to_owned())));
}

#[test]
fn the_command_line_quotes_its_words() {
    let command = "run --wait {wait} {lock} -- {work}".to_owned();
    let program = PathBuf::from("/a b/prove");
    let options = ExecOptions { command, program, ..ExecOptions::default() };
    assert_eq!(
        options.command_line("it's", Duration::from_millis(250), 7),
        r"run --wait 0.25 'it'\''s' -- '/a b/prove' 'witness' '7'"
    );
}

#[test]
fn a_command_needs_its_placeholders() {
    let options = ExecOptions { command: "run {lock}".to_owned(), ..ExecOptions::default() };
    let error = Exec::new(options, Arc::new(|_| ())).unwrap_err().to_string();
    assert!(error.contains("{work} is missing"), "{error}");
}

#[tokio::test]
async fn a_value_that_is_not_a_number_is_rejected() {
    let mut tested = tested(&under("SLOT=first", "exit 0"));
    let error = tested.exec.ask(&request(Verb::Acquire), LONG).await.unwrap_err().to_string();
    assert!(error.contains(r#"SLOT is "first", not a number"#), "{error}");
}
