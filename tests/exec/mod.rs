//! `lockkeeper exec` and related subcommands as processes, on a real broker: exit codes,
//! signals, the command when the lock is lost, and the administration of semaphores.

mod administering;
mod background;
pub mod ci;
pub mod commands;
mod doctor;
mod draining;
mod guarding;
mod holding;
mod hostile;
mod inherited;
mod install;
mod limits;
mod losing;
mod management;
mod manual;
mod mutexes;
mod one_protocol;
mod outcomes;
mod protocols;
mod quick_start;
mod resting;
mod semaphores;
pub mod shapes;
mod signals;
mod terminals;
mod verifying;
mod waiting;

use std::process::Stdio;

use lockkeeper_plan::naming::Protocol;
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::protocols::{At, options};
use serde_json::Value;
use tokio::process::Command;

/// The lock of most tests.
const LOCK: &str = "ci.deploy";

/// Result of a finished process.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Returns the `lockkeeper` command for the lock and protocol of that place. Killed with
/// the test. Has no stdin unless the test sets one.
fn lockkeeper(at: &impl At, arguments: &[&str]) -> Command {
    prefixed(&[], at, arguments)
}

/// Returns the same command, started by another program.
fn prefixed(prefix: &[&str], at: &impl At, arguments: &[&str]) -> Command {
    let mut command = program(prefix, &spoken(at.lock_name().protocol(), arguments));
    command
        .env("AMQP_URL", at.vhost().url())
        .env("RABBITMQ_MANAGEMENT_URL", variable("RABBITMQ_MANAGEMENT_URL"));
    command
}

/// Inserts the arguments for the protocol after the verb.
fn spoken<'a>(protocol: Protocol, arguments: &[&'a str]) -> Vec<&'a str> {
    let verb = if arguments.first() == Some(&"semaphore") { 2 } else { 1 };
    let verb = verb.min(arguments.len());
    [&arguments[..verb], options(protocol), &arguments[verb..]].concat()
}

fn program(prefix: &[&str], arguments: &[&str]) -> Command {
    let program = built::lockkeeper();
    let words: Vec<&str> =
        prefix.iter().copied().chain([program]).chain(arguments.to_vec()).collect();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs the command to its end.
async fn outcome(mut command: Command) -> Outcome {
    let output = command.output().await.unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs `lockkeeper` to its end.
async fn run(at: &impl At, arguments: &[&str]) -> Outcome {
    outcome(lockkeeper(at, arguments)).await
}

/// Runs `lockkeeper`, which must succeed. Returns its output.
async fn succeed(at: &impl At, arguments: &[&str]) -> String {
    let outcome = run(at, arguments).await;
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    outcome.stdout
}

/// Runs `lockkeeper semaphore` to its end.
async fn semaphore(at: &impl At, arguments: &[&str]) -> Outcome {
    run(at, &[&["semaphore"], arguments].concat()).await
}

/// Runs `lockkeeper semaphore`, which must succeed. Returns its output.
async fn json_of(at: &impl At, arguments: &[&str]) -> Value {
    let text = succeed(at, &[&["semaphore"], arguments, &["-o", "json"]].concat()).await;
    serde_json::from_str(&text).unwrap()
}

/// Creates the lock with this number of slots.
async fn create(at: &impl At, slots: u32) {
    let slots = slots.to_string();
    succeed(at, &["semaphore", "create", LOCK, "--slots", &slots]).await;
}
