//! A plain `run` provokes what the controls provoke: seeded bugs are found without options, and
//! each situation that a grade needs occurs.

use std::collections::BTreeMap;
use std::process::Output;
use std::time::Duration;

use lockkeeper_prove::history::{History, Rules};
use lockkeeper_prove::report::Report;
use lockkeeper_prove::report::sometimes::Sometimes;
use lockkeeper_prove::run::{RunOptions, Way, run_on};
use lockkeeper_testkit::environment::PATIENCE;
use lockkeeper_testkit::rabbitmq::Vhost;

use super::{prove, quoted, run_options, text};

const PROTOCOL: &str = "ExclusiveQueue";

/// The command line of the straw client with these options.
fn straw(options: &str) -> String {
    format!("{} straw --protocol {PROTOCOL} {options}", quoted("lockkeeper-prove"))
}

/// Runs the straw client, with further options of the straw client and of the run.
async fn run(vhost: &Vhost, bug: &str, options: &[&str]) -> Output {
    let straw = straw(bug);
    let run = ["run", "--driver", &straw, "--protocol", PROTOCOL, "--no-controls", "--seed", "1"];
    prove(Some(&vhost.url()), &[&run[..], options].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_granted_twice_to_its_holder_is_found() {
    let vhost = Vhost::create().await;
    // The run ends at the violation, after which it can grant no grade.
    let options = ["--for", "2", "--at-most", "100"];
    let played = run(&vhost, "--bug two-permits-one-connection", &options).await;
    let text = text(&played);
    assert_eq!(played.status.code(), Some(1), "{text}");
    assert!(text.contains("S2 CLIENT") && text.contains("again on the connection"), "{text}");
    assert!(text.contains("grade 0  NO"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_look_after_its_declare_is_found() {
    let vhost = Vhost::create().await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    // The schedules end at the first violation, and have a quarter of the longest time.
    let options = ["--for", "2", "--at-most", "240", "--out", out];
    let played = run(&vhost, "--bug no-look", &options).await;
    let said = text(&played);
    assert_eq!(played.status.code(), Some(1), "{said}");
    assert!(said.contains("S4 CLIENT in a random schedule: "), "{said}");
    assert!(said.contains("grade 0  NO") && said.contains(", 2 s, seed"), "{said}");
    let report = std::fs::read(format!("{out}/report.json")).unwrap();
    let report: Report = serde_json::from_slice(&report).unwrap();
    let scheduled = rows(report).find(|row| row.situation == SCHEDULED).unwrap();
    assert!(scheduled.seen > 0 && scheduled.needed > 0, "{scheduled:?}");
    let recorded = format!("{out}/schedule/run.jsonl");
    let judged = prove(None, &["check", &recorded]).await;
    assert_eq!(judged.status.code(), Some(1), "{}", text(&judged));
    assert!(text(&judged).contains("S4 CLIENT"), "{}", text(&judged));
}

/// The situations that a report counts.
fn rows(report: Report) -> impl Iterator<Item = Sometimes> {
    report.grades.into_iter().flat_map(|grade| grade.sometimes)
}

/// The situations that the report of this history counts, with their numbers.
fn situations(history: &History) -> BTreeMap<String, u64> {
    let rows = rows(Report::new(history, None, &[]).unwrap());
    rows.inspect(|row| assert!(row.needed > 0, "{row:?}"))
        .map(|row| (row.situation, row.seen))
        .collect()
}

/// Of the situations, the one that is not of the workload.
const SCHEDULED: &str = "random schedules of requests";

/// The situation of the end of the workload.
const LAST: &str = "clients alive at the last acquire";

#[tokio::test(flavor = "multi_thread")]
async fn each_situation_that_a_grade_needs_occurs_in_a_plain_run() {
    let vhost = Vhost::create().await;
    let straw = straw("");
    let options = RunOptions {
        way: Way::Driver(straw.clone()),
        administrator: straw,
        duration: Duration::from_secs(2),
        ..run_options(&vhost, Rules::ExclusiveQueue, 1)
    };
    let all = |history: &History| {
        let mut seen = situations(history).into_iter();
        seen.all(|(situation, seen)| seen > 0 || [SCHEDULED, LAST].contains(&&*situation))
    };
    let outcome = run_on(&options, PATIENCE * 3, all).await.unwrap();
    assert_eq!(outcome.verdict.violations, []);
    let mut seen = situations(&outcome.history);
    for of_grade_1 in ["kill in resize", "verifications of a removed slot"] {
        assert!(seen.contains_key(of_grade_1), "{seen:?}");
    }
    seen.remove(SCHEDULED);
    assert!(seen.values().all(|&seen| seen > 0), "{seen:?}");
}
