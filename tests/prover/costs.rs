//! What operations cost, measured on the wire of a real broker.

use lockkeeper_plan::naming::Protocol;
use lockkeeper_testkit::protocols::with_protocols;
use lockkeeper_testkit::rabbitmq::Vhost;
use serde_json::Value;

use super::{our_driver, prove, rules, text};

with_protocols! {
    every {
        verifying_and_releasing_cost_what_the_protocol_document_says,
    }
}

/// Counts, not times. Of the samples of each operation, the one with the fewest counts: on a busy
/// machine, requests that are sent together are some time apart, and look as if the second
/// depended on the first answer, and a sample lasts until the holder verifies its slot by itself.
async fn verifying_and_releasing_cost_what_the_protocol_document_says(protocol: Protocol) {
    let vhost = Vhost::create().await;
    let driver = our_driver(protocol);
    let cost =
        ["cost", "--driver", &driver, "--administrator", &driver, "--protocol", rules(protocol)];
    let few = ["--repetitions", "2", "--hold", "3", "--json"];
    let measured = prove(Some(&vhost.url()), &[&cost[..], &few].concat()).await;
    assert_eq!(measured.status.code(), Some(0), "{}", text(&measured));
    let report: Value = serde_json::from_slice(&measured.stdout).unwrap();
    let rows = report["operations"].as_array().unwrap();
    let of = |name: &str| {
        let warm = |row: &&Value| row["operation"] == name && row["first"] == false;
        let row = rows.iter().find(warm).unwrap_or_else(|| panic!("no {name}: {report}"));
        assert!(row["counts"]["client"]["bytes"].as_u64() > Some(0), "{row}");
        (row["fewest_methods"].clone(), row["round_trips"].clone())
    };
    let verify = if matches!(protocol, Protocol::Token(_)) { 1 } else { 2 };
    assert_eq!(of("verify"), (verify.into(), 1.0.into()), "{report}");
    // The release, and how many wait for it. Of a token: a request that is answered.
    assert_eq!(of("release"), (2.into(), 1.0.into()), "{report}");
}
