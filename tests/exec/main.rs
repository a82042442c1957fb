//! `lockkeeper exec` and its neighbours as processes, on a real broker: exit
//! codes, signals, what becomes of the command when the lock is lost, and the
//! verbs that administer semaphores. One test binary, so that it is linked once.

// clippy.toml's exception is for functions marked as tests, not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod draining;
mod guarding;
mod holding;
mod losing;
mod manual;
mod outcomes;
mod protocols;
mod semaphores;
mod signals;
mod terminals;
mod waiting;

use std::process::Stdio;

use environment::variable;
use lockkeeper::plan::naming::Protocol;
use support::environment;
use support::protocols::{At, options};
use tokio::process::Command;

/// The lock that most tests are about.
const LOCK: &str = "ci.deploy";

/// What a finished process leaves.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// `lockkeeper` there, about the lock of that place's protocol. Ended with the test;
/// without input, unless it is given one.
fn lockkeeper(at: &impl At, arguments: &[&str]) -> Command {
    prefixed(&[], at, arguments)
}

/// The same, started by another program.
fn prefixed(prefix: &[&str], at: &impl At, arguments: &[&str]) -> Command {
    let mut command = program(prefix, &spoken(at.lock_name().protocol(), arguments));
    command
        .env("AMQP_URL", at.vhost().url())
        .env("RABBITMQ_MANAGEMENT_URL", variable("RABBITMQ_MANAGEMENT_URL"));
    command
}

/// The arguments with those that mean the protocol, after the verb.
fn spoken<'a>(protocol: Protocol, arguments: &[&'a str]) -> Vec<&'a str> {
    let verb = if arguments.first() == Some(&"semaphore") { 2 } else { 1 };
    let verb = verb.min(arguments.len());
    [&arguments[..verb], options(protocol), &arguments[verb..]].concat()
}

fn program(prefix: &[&str], arguments: &[&str]) -> Command {
    let program = env!("CARGO_BIN_EXE_lockkeeper");
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

/// Runs it to its end.
async fn outcome(mut command: Command) -> Outcome {
    let output = command.output().await.unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs `lockkeeper` there to its end.
async fn run(at: &impl At, arguments: &[&str]) -> Outcome {
    outcome(lockkeeper(at, arguments)).await
}

/// The same; it must succeed. Returns its output.
async fn succeed(at: &impl At, arguments: &[&str]) -> String {
    let outcome = run(at, arguments).await;
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    outcome.stdout
}

/// Makes the lock with so many slots.
async fn create(at: &impl At, slots: u32) {
    let slots = slots.to_string();
    succeed(at, &["semaphore", "create", LOCK, "--slots", &slots]).await;
}
