//! `lockkeeper queue` as processes, on a real Redis: what goes in comes out, and
//! what becomes of it when something ends early. One test binary, so that it is
//! linked once.

// clippy.toml's exception is for functions marked as tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/authority.rs"]
mod authority;
#[path = "../support/environment.rs"]
mod environment;
#[path = "../support/redis.rs"]
mod redis_support;
#[path = "../support/redis_tls.rs"]
mod redis_tls;

mod doctor;
mod encrypted;
mod ends;
mod errors;
mod examples;
mod flow;
mod kills;
mod looking;
mod patience;
mod readers;
mod terminals;

use std::process::Stdio;
use std::time::Duration;

use environment::signal;
use redis_support::{Place, eventually};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// Nothing here takes longer, on a busy machine either. A wait that looked now and
/// then, instead of waking, would.
const PATIENCE: Duration = Duration::from_mins(3);

/// What a finished process leaves.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

impl Outcome {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// A program that heeds signals, whoever runs the tests: a shell that starts them in
/// the background has them ignore some.
fn program(place: &Place, name: &str) -> Command {
    let mut command = Command::new("env");
    in_place(place, &mut command);
    command.args(["--default-signal=INT,QUIT,HUP", name]);
    command
}

/// `lockkeeper queue VERB jobs …` in the test's place. Ended with the test.
fn queue(place: &Place, verb: &str, arguments: &[&str]) -> Command {
    let mut command = program(place, env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["queue", verb, place.queue.as_str()]).args(arguments);
    command
}

/// A line of shell, in which `lockkeeper` is ours.
fn shell(place: &Place, line: &str) -> Command {
    let mut command = program(place, "bash");
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.args(["-c", line]).env("PATH", path);
    command
}

fn in_place(place: &Place, command: &mut Command) {
    command
        .env("REDIS_URL", &place.url)
        .env("PRESSURE_PREFIX", place.queue.prefix())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
}

/// Runs it to its end.
async fn outcome(mut command: Command) -> Outcome {
    finish(command.spawn().unwrap()).await
}

async fn finish(child: Child) -> Outcome {
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let output = output.expect("it ends").unwrap();
    Outcome {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a verb to its end.
async fn run(place: &Place, verb: &str, arguments: &[&str]) -> Outcome {
    outcome(queue(place, verb, arguments)).await
}

/// The same; it must succeed. Returns its output.
async fn succeed(place: &Place, verb: &str, arguments: &[&str]) -> Vec<u8> {
    let outcome = run(place, verb, arguments).await;
    assert_eq!(outcome.code, Some(0), "{verb} {arguments:?}: {outcome:?}");
    outcome.stdout
}

/// Runs a line of shell, which must succeed. Returns its output.
async fn sh(place: &Place, line: &str) -> String {
    let outcome = outcome(shell(place, line)).await;
    assert_eq!(outcome.code, Some(0), "{line}: {outcome:?}");
    outcome.text().to_owned()
}

/// Runs `put` with this input.
async fn put(place: &Place, arguments: &[&str], input: &[u8]) -> Outcome {
    let mut command = queue(place, "put", arguments);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writing = tokio::spawn(async move {
        // It may end before it has read everything.
        let _ = stdin.write_all(&input).await;
    });
    let outcome = finish(child).await;
    writing.abort();
    outcome
}

/// The same; it must succeed, and the queue stays open.
async fn fill(place: &Place, input: &[u8]) {
    let outcome = put(place, &["--keep-open"], input).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
}

/// The lines of `seq FROM TO`.
fn seq(from: usize, to: usize) -> String {
    (from..=to).map(|number| number.to_string() + "\n").collect()
}

/// What is in the queue, the oldest first.
async fn content(place: &Place) -> Vec<String> {
    let mut elements: Vec<String> = place.run(&["LRANGE", &place.key(""), "0", "-1"]).await;
    elements.reverse();
    elements
}

/// Waits until the queue has so many elements.
async fn until_length(place: &Place, length: u64) {
    let is_so = async || place.length("").await == length;
    eventually(&format!("{length} elements are in the queue"), is_so).await;
}

/// That the queue is at rest as the protocol has it: both roles free, and a token
/// exactly where there is room.
async fn is_at_rest(place: &Place) {
    assert_eq!(place.length(":producer_free").await, 1, "the producer role is free");
    assert_eq!(place.length(":consumer_free").await, 1, "the consumer role is free");
    let bound: u64 = place.run(&["GET", &place.key(":bound")]).await;
    let has_room = bound == 0 || place.length("").await < bound;
    assert_eq!(place.length(":not_full").await, u64::from(has_room), "the token tells of room");
}

/// A number of the queue's keys.
async fn counter(place: &Place, suffix: &str) -> u64 {
    let number: Option<u64> = place.run(&["GET", &place.key(suffix)]).await;
    number.unwrap_or(0)
}

/// Ends a process by a signal; returns what it leaves.
async fn end(child: Child, name: &str) -> Outcome {
    signal(child.id().expect("it runs"), name);
    finish(child).await
}
