//! The program `lockkeeper-prove` against a real broker: correct implementations pass, seeded
//! bugs are found with their cause. How it judges a history is tested in `crates/prove`, without a
//! broker.

mod controls;
mod costs;
mod implementations;
mod interleavings;
mod minimized;
mod plain_runs;
mod variants;
mod watching;
mod without_broker;

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use lockkeeper_plan::naming::{Protocol, QueueType};
use lockkeeper_prove::history::{Faults, Rules, Variables};
use lockkeeper_prove::run::{RunOptions, Way};
use lockkeeper_testkit::built;
use lockkeeper_testkit::protocols::options;
use lockkeeper_testkit::rabbitmq::Vhost;
use tokio::process::Command;

/// The prover.
fn program() -> String {
    built::program("lockkeeper-prove")
}

/// A program of this workspace, quoted for a shell.
fn quoted(name: &str) -> String {
    format!("'{}'", built::program(name))
}

/// The value of the option `--protocol` of the prover.
fn rules(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::ExclusiveQueue(_) => "ExclusiveQueue",
        Protocol::ExclusiveConsumer => "ExclusiveConsumer",
        Protocol::Token(QueueType::Classic) => "Token",
        Protocol::Token(QueueType::Quorum) | Protocol::TrueMutex => panic!("is not judged"),
    }
}

/// The command line of our driver.
fn our_driver(protocol: Protocol) -> String {
    format!("{} drive {}", quoted("lockkeeper"), options(protocol).join(" "))
}

/// The options of a run without an implementation and a duration.
fn run_options(vhost: &Vhost, rules: Rules, seed: u64) -> RunOptions {
    RunOptions {
        way: Way::Exec(String::new(), Variables::default()),
        second_driver: None,
        administrator: String::new(),
        url: Some(vhost.url().parse().unwrap()),
        rules,
        lock: format!("prove.run-{seed}"),
        seed,
        duration: Duration::ZERO,
        clients: 4,
        slots: 2,
        faults: Faults::SOME,
        resize_within: Duration::from_millis(600),
        program: PathBuf::from(program()),
    }
}

/// Runs the program to its end, with the URL of a broker if it needs one.
async fn prove(url: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).env_remove("AMQP_URL").stdin(Stdio::null()).kill_on_drop(true);
    command.envs(url.map(|url| ("AMQP_URL", url))).output().await.unwrap()
}

fn text(output: &Output) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", part(&output.stdout), part(&output.stderr))
}

/// Requires that nothing was wrong, and that there was something to judge.
fn passes(output: &Output) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("excludes: no violation"), "{text}");
}
