//! Clients that deviate from their protocol in one way are found by the workload and the random
//! schedules of a plain `run`, and unusual ones that do not deviate pass. The clients are in
//! `variants/`; see `controls` for those of the prover itself.

use std::time::Duration;

use futures::StreamExt;
use lockkeeper_plan::naming::{Profile, Protocol, QueueType};
use lockkeeper_prove::check::verdict::{Cause, Verdict, Violation};
use lockkeeper_prove::controls::find;
use lockkeeper_prove::history::{Rules, Variables};
use lockkeeper_prove::run::{RunOptions, Way, run_until};
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::rabbitmq::Vhost;

use super::{our_driver, run_options};

/// Number of clients that are judged at the same time.
const AT_ONCE: usize = 3;

/// Number of rounds of 16 s in which a right client must not be found.
const RIGHT_FOR: u64 = 4;

/// Maximum time of the random schedules in a round. A program in Python executes few in a second.
const SCHEDULES: Duration = Duration::from_secs(10);

/// Maximum number of rounds in which a wrong client must be found. More in a test run, because
/// the machine may be busy.
fn limit() -> u64 {
    if is_soak() { 4 } else { RARELY_WRONG_FOR }
}

/// The same for those of [`RARELY_WRONG`].
const RARELY_WRONG_FOR: u64 = 15;

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
            ("LeavesBAndIsFull", "PS-10"),
            ("LeavesBAndGoesOn", "PS-10"),
            ("LeavesBAndRaises", "PS-10"),
            ("NeverLooksAgain", "S4"),
            ("DurableB", "PS-1"),
            ("BWithoutArguments", "PS-1"),
            ("TimeoutIsSuccess", "S4"),
            ("GrantsTwice", "S2"),
            ("TakesAll", "S6"),
            ("IsFullAndKeeps", "PS-10"),
            ("NeverDraining", "S5"),
            ("DrainingIsLost", "S6"),
            ("LostForNoReason", "S6"),
            ("RaisesInRelease", "S6"),
            ("ReleasesSoon", "S6"),
            ("NeverWoken", "S10"),
            ("IgnoresTheWait", "S10"),
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
            ("KeepsItsConsumer", "S6"),
        ],
    ),
];

/// Wrong clients that few schedules find, which takes minutes: `make soak`.
const RARELY_WRONG: [(Rules, &[(&str, &str)]); 1] =
    [(Rules::ExclusiveConsumer, &[("NeverLooks", "S4")])];

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

fn options(vhost: &Vhost, rules: Rules, way: Way, seed: u64) -> RunOptions {
    RunOptions {
        way,
        administrator: our_driver(protocol(rules)),
        ..run_options(vhost, rules, seed)
    }
}

/// Returns the violations in the last of up to this number of rounds.
async fn judged(
    (rules, name, seed): (Rules, &str, u64),
    rounds: u64,
    ends: impl Fn(&Violation) -> bool,
) -> Vec<Violation> {
    let vhost = Vhost::create().await;
    let way = Way::Driver(format!("{} {rules:?} {name}", program("")));
    find(&options(&vhost, rules, way, seed), rounds, SCHEDULES, ends).await.unwrap()
}

/// Returns these clients of a protocol, each with each seed.
fn each<T: Copy>(all: &[(Rules, &'static [T])], rules: Rules) -> Vec<(T, u64)> {
    let seeds = 1..=if is_soak() { 3 } else { 1 };
    let clients = all.iter().filter(|(of, _)| *of == rules).flat_map(|(_, clients)| *clients);
    clients.flat_map(|client| seeds.clone().map(move |seed| (*client, seed))).collect()
}

async fn right_ones_pass(rules: Rules) {
    let runs = futures::stream::iter(each(&RIGHT, rules)).map(async |(name, seed)| {
        let violations = judged((rules, name, seed), RIGHT_FOR, |_| true).await;
        assert_eq!(violations, [], "{name}, seed {seed}");
    });
    runs.buffer_unordered(AT_ONCE).collect::<()>().await;
}

async fn wrong_ones_are_found(rules: Rules) {
    let with = |rounds| move |client| (client, rounds);
    let mut clients: Vec<_> = each(&WRONG, rules).into_iter().map(with(limit())).collect();
    if is_soak() {
        clients.extend(each(&RARELY_WRONG, rules).into_iter().map(with(RARELY_WRONG_FOR)));
    }
    let runs = futures::stream::iter(clients).map(async |(((name, property), seed), rounds)| {
        let is_it = |one: &Violation| one.name() == property && one.cause == Cause::Client;
        let start = std::time::Instant::now();
        let violations = judged((rules, name, seed), rounds, is_it).await;
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
    let vhost = Vhost::create().await;
    let options = options(&vhost, Rules::ExclusiveQueue, way, 1);
    let options = RunOptions { duration: Duration::from_mins(4), ..options };
    let found = |verdict: &Verdict| verdict.violations.iter().any(is_it);
    let violations = run_until(&options, found).await.unwrap().verdict.violations;
    assert!(violations.iter().any(is_it), "{violations:?}");
}
