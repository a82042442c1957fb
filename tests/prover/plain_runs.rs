//! A plain `run` provokes what the controls provoke: seeded bugs are found without options, and
//! the report shows how often each situation occurred.

use std::process::Output;

use lockkeeper_testkit::rabbitmq::Vhost;
use serde_json::Value;

use super::{passes, prove, quoted, text};

/// Runs the straw client, with further options of the straw client and of the run.
async fn run(vhost: &Vhost, bug: &str, options: &[&str]) -> Output {
    let protocol = "ExclusiveQueue";
    let straw = format!("{} straw --protocol {protocol} {bug}", quoted("lockkeeper-prove"));
    let run = ["run", "--driver", &straw, "--protocol", protocol, "--no-controls", "--seed", "1"];
    prove(Some(&vhost.url()), &[&run[..], options].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_granted_twice_to_its_holder_is_found() {
    let vhost = Vhost::create().await;
    let played = run(&vhost, "--bug two-permits-one-connection", &["--for", "6"]).await;
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
    let recorded = format!("{out}/schedule/run.jsonl");
    let judged = prove(None, &["check", &recorded]).await;
    assert_eq!(judged.status.code(), Some(1), "{}", text(&judged));
    assert!(text(&judged).contains("S4 CLIENT"), "{}", text(&judged));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_shows_how_often_each_situation_occurred() {
    let vhost = Vhost::create().await;
    let folder = tempfile::tempdir().unwrap();
    let played = run(&vhost, "", &["--for", "8", "--out", folder.path().to_str().unwrap()]).await;
    passes(&played);
    let report = std::fs::read(folder.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let grades = report["grades"].as_array().unwrap().iter();
    let rows = grades.flat_map(|grade| grade["sometimes"].as_array().unwrap());
    let rows: Vec<&Value> = rows.collect();
    let seen = |situation: &str| {
        let row = rows.iter().find(|row| row["situation"] == situation);
        let row = row.unwrap_or_else(|| panic!("no row {situation:?}: {rows:?}"));
        assert!(row["needed"].as_u64() > Some(0), "{row}");
        row["seen"].as_u64().unwrap()
    };
    // Each cycle or the run itself provokes these, so even a busy machine meets them.
    for situation in [
        "acquires of a holder",
        "random schedules of requests",
        "clients alive at the last acquire",
    ] {
        assert!(seen(situation) > 0, "{situation}");
    }
    for situation in [
        "refusals at the end of a wait",
        "acquires that may wait 6 s",
        "grants to a process after a loss or an error",
        "holders asked more than 1 s after a cut",
        "verifications of a removed slot",
        "cut in resize",
        "kill in resize",
    ] {
        seen(situation);
    }
}
