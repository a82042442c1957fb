//! `lockkeeper queue` as processes, on a real Redis: data is transferred unchanged, and
//! the outcome of early ends is right.

mod acks;
mod attempts;
mod deleting;
mod doctor;
mod encrypted;
mod ends;
mod errors;
mod examples;
mod flow;
mod kills;
mod library;
mod looking;
mod memory;
mod networks;
mod outages;
mod patience;
mod places;
mod readers;
mod schedules;
mod shapes;
mod streams;
mod terminals;

use std::process::Stdio;
use std::time::Duration;

use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::signal;
use lockkeeper_testkit::redis::{TestQueue, eventually};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// No operation here takes longer, even on a busy machine. A wait that polled instead of
/// being woken would.
const PATIENCE: Duration = Duration::from_mins(3);

/// Result of a finished process.
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

/// Returns a program that reacts to signals, even if the tests run in the background of a
/// shell, which makes them ignore some.
fn program(place: &TestQueue, name: &str) -> Command {
    let mut command = Command::new("env");
    in_place(place, &mut command);
    command.args(["--default-signal=INT,QUIT,HUP", name]);
    command
}

/// Returns `lockkeeper queue VERB jobs …` in the test's place. Killed with the test.
fn queue(place: &TestQueue, verb: &str, arguments: &[&str]) -> Command {
    let mut command = program(place, built::lockkeeper());
    command.args(["queue", verb, place.queue.as_str()]).args(arguments);
    command
}

/// Returns a shell line, in which `lockkeeper` is this build.
fn shell(place: &TestQueue, line: &str) -> Command {
    let mut command = program(place, "bash");
    let folder = std::path::Path::new(built::lockkeeper()).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.args(["-c", line]).env("PATH", path);
    command
}

fn in_place(place: &TestQueue, command: &mut Command) {
    command
        .env("REDIS_URL", &place.url)
        .env("PRESSURE_PREFIX", place.queue.prefix())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
}

/// Runs the command to its end.
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

/// Runs a subcommand to its end.
async fn run(place: &TestQueue, verb: &str, arguments: &[&str]) -> Outcome {
    outcome(queue(place, verb, arguments)).await
}

/// Runs a subcommand, which must succeed. Returns its output.
async fn succeed(place: &TestQueue, verb: &str, arguments: &[&str]) -> Vec<u8> {
    let outcome = run(place, verb, arguments).await;
    assert_eq!(outcome.code, Some(0), "{verb} {arguments:?}: {outcome:?}");
    outcome.stdout
}

/// Runs a shell line, which must succeed. Returns its output.
async fn sh(place: &TestQueue, line: &str) -> String {
    let outcome = outcome(shell(place, line)).await;
    assert_eq!(outcome.code, Some(0), "{line}: {outcome:?}");
    outcome.text().to_owned()
}

/// Runs `put` with this input.
async fn put(place: &TestQueue, arguments: &[&str], input: &[u8]) -> Outcome {
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

/// Runs `put`, which must succeed. The queue stays open.
async fn fill(place: &TestQueue, input: &[u8]) {
    let outcome = put(place, &["--keep-open"], input).await;
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
}

/// Returns the lines of `seq FROM TO`.
fn seq(from: usize, to: usize) -> String {
    (from..=to).map(|number| number.to_string() + "\n").collect()
}

/// Returns the elements of the queue, oldest first.
async fn content(place: &TestQueue) -> Vec<String> {
    let mut elements: Vec<String> = place.run(&["LRANGE", &place.key(""), "0", "-1"]).await;
    elements.reverse();
    elements
}

/// Waits until the queue has this number of elements.
async fn until_length(place: &TestQueue, length: u64) {
    let is_so = async || place.length("").await == length;
    eventually(&format!("{length} elements are in the queue"), is_so).await;
}

/// Checks that the queue is idle as defined by the protocol: both roles are free, and
/// there is a token exactly if there is capacity.
async fn is_at_rest(place: &TestQueue) {
    assert_eq!(place.length(":producer_free").await, 1, "the producer role is free");
    assert_eq!(place.length(":consumer_free").await, 1, "the consumer role is free");
    let bound: u64 = place.run(&["GET", &place.key(":bound")]).await;
    let has_room = bound == 0 || place.length("").await < bound;
    assert_eq!(place.length(":not_full").await, u64::from(has_room), "the token shows the room");
}

/// Returns a counter of the queue's keys.
async fn counter(place: &TestQueue, suffix: &str) -> u64 {
    let number: Option<u64> = place.run(&["GET", &place.key(suffix)]).await;
    number.unwrap_or(0)
}

/// Ends a process with a signal. Returns its result.
async fn end(child: Child, name: &str) -> Outcome {
    signal(child.id().expect("it runs"), name);
    finish(child).await
}
