//! Clients that deviate from their protocol in one way are found by the workload of a plain `run`,
//! and unusual ones that do not deviate pass. The clients are in `variants/`; see `controls` for those
//! of the prover itself.

use std::time::Duration;

use futures::StreamExt;
use lockkeeper_plan::naming::{Profile, Protocol, QueueType};
use lockkeeper_prove::check::verdict::{Cause, Verdict, Violation};
use lockkeeper_prove::history::{Rules, Variables};
use lockkeeper_prove::run::{RunOptions, Way, run_until};
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::rabbitmq::Vhost;

use super::{our_driver, run_options};

/// Number of clients that are judged at the same time.
const AT_ONCE: usize = 3;

/// Maximum number of runs in which a wrong client must be found, as the rounds of a control. A
/// violation that ends a run may be missing in the verdict on the whole run: what a killed process
/// owned is uncertain if the broker notices its end first.
const ROUNDS: u64 = 3;

/// The time for which a right client must not be found.
const RIGHT_FOR: Duration = Duration::from_secs(60);

/// Maximum time in which a wrong client must be found. More in a test run, because the machine
/// may be busy.
fn limit() -> Duration {
    Duration::from_secs(if is_soak() { 60 } else { 240 })
}

/// Unusual clients that are right.
const RIGHT: [(Rules, &[&str]); 3] = [
    (
        Rules::ExclusiveQueue,
        &[
            "Right",
            "Slow",
            "PollsOften",
            "PollsSeldom",
            "RandomSlots",
            "ProbesOnOtherConnections",
            "ReportsNoSlot",
            "NeverVerifies",
            "ReleasesBySocket",
            "ReleasesByClose",
            "ProbesWithConfirms",
            "ProbesInTransactions",
            "NoHeartbeats",
            "VerifiesByDeclaring",
            "TakesAllAndGivesBack",
            "ReleasesWhenDraining",
            "ReleasesTwice",
            "RemembersItsSlot",
            "FullOnError",
            // The connection on which it asks is the one that owns B.
            "VerifiesA",
        ],
    ),
    (Rules::ExclusiveConsumer, &["Right", "ReleasesByCancel"]),
    (
        Rules::Token,
        &[
            "Right",
            "Nacks",
            "Recovers",
            "ClosesItsChannel",
            "ClosesItsConnection",
            "ReportsNoToken",
            "Gets",
            "NoRoundTrip",
        ],
    ),
];

/// Wrong clients, each with the property or rule that it violates.
const WRONG: [(Rules, &[(&str, &str)]); 3] = [
    (
        Rules::ExclusiveQueue,
        &[
            ("VerifiesSeldom", "S5"),
            ("VerifiesOncePerTenMilliseconds", "S5"),
            ("VerifiesByItsLibrary", "S5"),
            ("VerifiesNothing", "S5"),
            ("VerifiesOnNewConnections", "S5"),
            ("DeclaresAgainAfterLoss", "PS-8"),
            ("RemembersTheSlots", "S4"),
            ("IgnoresReturns", "S4"),
            ("Miscounts", "S4"),
            ("ForgetsTheDelete", "S6"),
            ("ReleasesLater", "S6"),
            ("DeletesA", "S9"),
            ("DurableB", "PS-1"),
            ("BWithoutArguments", "PS-1"),
            ("TimeoutIsSuccess", "S4"),
            ("GrantsTwice", "S2"),
            ("TakesAll", "S6"),
            ("IsFullAndKeeps", "PS-10"),
            ("NeverDraining", "S5"),
            ("DrainingIsLost", "S6"),
            ("NoticesNoEnd", "S2"),
            ("ReleasesTheChannel", "S6"),
        ],
    ),
    (
        Rules::ExclusiveConsumer,
        &[
            ("SharedConsumers", "S4"),
            ("NoType", "EC-3"),
            ("DeletesC", "S6"),
            ("DeletesCSeldom", "S9"),
        ],
    ),
    (
        Rules::Token,
        &[
            ("AcksSeldom", "TokensConserved"),
            ("RejectsForGood", "TokensConserved"),
            ("NoCancel", "S6"),
            ("PrefetchesTwo", "S6"),
            ("TakesTwo", "S6"),
        ],
    ),
];

fn protocol(rules: Rules) -> Protocol {
    match rules {
        Rules::ExclusiveConsumer => Protocol::ExclusiveConsumer,
        Rules::Token => Protocol::Token(QueueType::Classic),
        _ => Protocol::ExclusiveQueue(Profile::default()),
    }
}

/// A Python program in the folder of the clients.
fn program(file: &str) -> String {
    format!("/usr/bin/python3 -B '{}/tests/prover/variants{file}'", env!("CARGO_MANIFEST_DIR"))
}

fn client(rules: Rules, variant: &str) -> Way {
    Way::Driver(format!("{} {rules:?} {variant}", program("")))
}

/// Runs the workload of a plain `run`, until this violation or the end of its time.
/// Returns the violations.
async fn judged(
    rules: Rules,
    way: Way,
    seed: u64,
    duration: Duration,
    ends: impl Fn(&Violation) -> bool,
) -> Vec<Violation> {
    let vhost = Vhost::create().await;
    let administrator = our_driver(protocol(rules));
    let options = RunOptions { way, administrator, duration, ..run_options(&vhost, rules, seed) };
    let found = |verdict: &Verdict| verdict.violations.iter().any(&ends);
    let outcome = run_until(&options, found).await.unwrap();
    outcome.verdict.violations
}

/// The seeds of the runs.
fn seeds() -> std::ops::RangeInclusive<u64> {
    1..=if is_soak() { 3 } else { 1 }
}

async fn right_ones_pass(rules: Rules) {
    let clients = RIGHT.iter().filter(|(of, _)| *of == rules).flat_map(|(_, clients)| *clients);
    let runs = clients.flat_map(|client| seeds().map(move |seed| (client, seed)));
    let runs = futures::stream::iter(runs).map(async |(name, seed)| {
        let violations = judged(rules, client(rules, name), seed, RIGHT_FOR, |_| true).await;
        assert_eq!(violations, [], "{name}, seed {seed}");
    });
    runs.buffer_unordered(AT_ONCE).collect::<()>().await;
}

async fn wrong_ones_are_found(rules: Rules) {
    let clients = WRONG.iter().filter(|(of, _)| *of == rules).flat_map(|(_, clients)| *clients);
    let runs = clients.flat_map(|client| seeds().map(move |seed| (client, seed)));
    let time = limit();
    let runs = futures::stream::iter(runs).map(async |(&(name, property), seed)| {
        let is_it = |one: &Violation| one.name() == property && one.cause == Cause::Client;
        let start = std::time::Instant::now();
        let mut violations = Vec::new();
        for round in 0..ROUNDS {
            let way = client(rules, name);
            violations = judged(rules, way, seed + 100 * round, time, is_it).await;
            if violations.iter().any(is_it) {
                break;
            }
        }
        println!("{name}, seed {seed}: {:?}", start.elapsed());
        assert!(violations.iter().any(is_it), "{name}, seed {seed}: {violations:?}");
    });
    runs.buffer_unordered(AT_ONCE).collect::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unusual_clients_of_exclusive_queues_pass() {
    right_ones_pass(Rules::ExclusiveQueue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unusual_clients_of_exclusive_consumers_pass() {
    right_ones_pass(Rules::ExclusiveConsumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unusual_clients_of_tokens_pass() {
    right_ones_pass(Rules::Token).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clients_of_exclusive_queues_are_found() {
    wrong_ones_are_found(Rules::ExclusiveQueue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clients_of_exclusive_consumers_are_found() {
    wrong_ones_are_found(Rules::ExclusiveConsumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clients_of_tokens_are_found() {
    wrong_ones_are_found(Rules::Token).await;
}

/// Its work is in a session of its own, and nothing ends it.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_goes_on_after_its_killed_wrapper_is_found() {
    let exec = format!("{} {{lock}} {{wait}} {{work}}", program("/wrapper.py"));
    let variables = Variables { slot_env: Some("LOCK_SLOT".to_owned()), ..Variables::default() };
    let way = Way::Exec(exec, variables);
    let is_it = |one: &Violation| one.name() == "S2" && one.cause == Cause::Client;
    let time = limit();
    let violations = judged(Rules::ExclusiveQueue, way, 1, time, is_it).await;
    assert!(violations.iter().any(is_it), "{violations:?}");
}
