//! A recorded run with a violation is reduced to a smaller one with the same violation.

use lockkeeper_testkit::rabbitmq::Vhost;
use serde_json::Value;

use super::{prove, quoted, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_violation_is_reduced_to_a_smaller_run() {
    let vhost = Vhost::create().await;
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (recorded, smallest) = (written("recorded"), written("smallest"));
    let straw = format!(
        "{} straw --protocol ExclusiveQueue --bug release-closes-channel",
        quoted("lockkeeper-prove")
    );
    let run = ["run", "--driver", &straw, "--protocol", "ExclusiveQueue", "--out", &recorded];
    let url = vhost.url();
    let played = prove(Some(&url), &[&run[..], &["--for", "6", "--no-controls"]].concat()).await;
    assert_eq!(played.status.code(), Some(1), "{}", text(&played));

    let file = format!("{recorded}/run.jsonl");
    // It ends when nothing is left to reduce.
    let replay = ["replay", &file, "--minimize", "--for", "120", "--out", &smallest];
    let minimized = prove(Some(&url), &replay).await;
    let said = text(&minimized);
    assert_eq!(minimized.status.code(), Some(1), "{said}");
    assert!(said.contains("left out: fault kill"), "{said}");

    let judged = prove(None, &["check", &format!("{smallest}/run.jsonl"), "--json"]).await;
    let report: Value = serde_json::from_slice(&judged.stdout).unwrap();
    let violations = report["verdict"]["violations"].as_array().unwrap();
    let found = violations.iter().any(|one| one["property"] == "S6" && one["cause"] == "CLIENT");
    assert!(found, "{report}");
    assert_eq!(report["header"]["played"]["faults"]["kill"], 0, "{said}");
    assert!(std::fs::exists(format!("{smallest}/violation-S6-1.svg")).unwrap(), "{said}");
    let again = ["replay", &format!("{smallest}/run.jsonl"), "--times", "20"];
    let again = prove(Some(&url), &again).await;
    assert!(text(&again).contains("S6 (violated in the recorded run): violated again"), "{said}");
}
