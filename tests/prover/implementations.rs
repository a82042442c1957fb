//! Implementations without bugs have no violation: our driver, our command that runs another one
//! under the lock, and the clients in Python. With kills, cut connections and resizes.

use lockkeeper_plan::naming::Protocol;
use lockkeeper_testkit::protocols::{options, with_protocols};
use lockkeeper_testkit::rabbitmq::Vhost;

use super::{our_driver, passes, prove, quoted, rules, text};

with_protocols! {
    every {
        our_driver_has_no_violation,
        exec_has_no_violation,
        a_driver_is_understood,
        a_recorded_run_is_judged_the_same_again,
        clients_in_python_have_no_violation,
    }
}

async fn our_driver_has_no_violation(protocol: Protocol) {
    let vhost = Vhost::create().await;
    let driver = our_driver(protocol);
    let run =
        ["run", "--driver", &driver, "--administrator", &driver, "--protocol", rules(protocol)];
    let played =
        prove(Some(&vhost.url()), &[&run[..], &["--for", "8", "--no-controls"]].concat()).await;
    passes(&played);
    let left = vhost.queues().await;
    assert!(left.is_empty(), "left on the broker: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn our_driver_that_probes_in_transactions_has_no_violation() {
    let vhost = Vhost::create().await;
    let driver = our_driver(Protocol::default()) + " --probe tx";
    let run = ["run", "--driver", &driver, "--administrator", &driver, "--for", "4"];
    let rules = ["--protocol", "ExclusiveQueue", "--no-controls"];
    passes(&prove(Some(&vhost.url()), &[&run[..], &rules].concat()).await);
}

async fn exec_has_no_violation(protocol: Protocol) {
    let vhost = Vhost::create().await;
    let exec = format!(
        "{} exec {} --heartbeat 5s --timeout {{wait}}s {{lock}} -- {{work}}",
        quoted("lockkeeper"),
        options(protocol).join(" ")
    );
    let (driver, token) = (our_driver(protocol), ["--token-env", "LOCK_TOKEN_ID"]);
    let found = if rules(protocol) == "Token" { token } else { ["--slot-env", "LOCK_SLOT"] };
    let run = ["run", "--exec", &exec, "--administrator", &driver, "--protocol", rules(protocol)];
    let run = [&run[..], &found, &["--for", "8", "--no-controls"]].concat();
    passes(&prove(Some(&vhost.url()), &run).await);
}

async fn a_driver_is_understood(protocol: Protocol) {
    let vhost = Vhost::create().await;
    let spoken = prove(Some(&vhost.url()), &["speak", "--driver", &our_driver(protocol)]).await;
    let text = text(&spoken);
    assert_eq!(spoken.status.code(), Some(0), "{text}");
    for verb in ["acquire", "verify", "believes", "release", "resize", "count", "destroy"] {
        assert!(text.contains(&format!("{verb:<9} yes")), "{text}");
    }
}

async fn a_recorded_run_is_judged_the_same_again(protocol: Protocol) {
    let vhost = Vhost::create().await;
    let folder = tempfile::tempdir().unwrap();
    let (folder, file) = (folder.path(), folder.path().join("run.jsonl"));
    let (folder, file) = (folder.to_str().unwrap(), file.to_str().unwrap());
    let straw = format!("{} straw --protocol {}", quoted("lockkeeper-prove"), rules(protocol));
    let run = ["run", "--driver", &straw, "--protocol", rules(protocol)];
    let out = ["--for", "2", "--no-controls", "--out", folder];
    passes(&prove(Some(&vhost.url()), &[&run[..], &out].concat()).await);
    let report = |text: &[u8]| -> serde_json::Value { serde_json::from_slice(text).unwrap() };
    let written = report(&std::fs::read(format!("{folder}/report.json")).unwrap());
    let judged = prove(None, &["check", file, "--json"]).await;
    assert_eq!(judged.status.code(), Some(0), "{}", text(&judged));
    assert_eq!(report(&judged.stdout)["verdict"], written["verdict"]);
    assert!(!std::fs::read_to_string(file).unwrap().contains("amqp://"), "a password");
}

/// The clients in Python, by their driver and by the command line of each.
async fn clients_in_python_have_no_violation(protocol: Protocol) {
    let vhost = Vhost::create().await;
    let (administrator, rules) = (our_driver(protocol), rules(protocol));
    let python = |file: &str| {
        format!("/usr/bin/python3 '{}/examples/python/{file}'", env!("CARGO_MANIFEST_DIR"))
    };
    let (client, found) = match protocol {
        Protocol::ExclusiveQueue(_) => ("guideline_client.py", ["--slot-env", "LOCK_SLOT"]),
        Protocol::ExclusiveConsumer => {
            ("exclusive_consumer_client.py", ["--slot-env", "LOCK_SLOT"])
        }
        _ => ("token_client.py", ["--token-env", "LOCK_TOKEN_ID"]),
    };
    let driver = format!("{} {rules}", python("driver.py"));
    let exec = format!("{} --timeout {{wait}} {{lock}} -- {{work}}", python(client));
    let run = [
        "run",
        "--administrator",
        &administrator,
        "--protocol",
        rules,
        "--for",
        "8",
        "--no-controls",
    ];
    let url = vhost.url();
    passes(&prove(Some(&url), &[&run[..], &["--driver", &driver]].concat()).await);
    passes(&prove(Some(&url), &[&run[..], &["--exec", &exec], &found].concat()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_administrator_is_named() {
    let vhost = Vhost::create().await;
    let exec = "true {lock} {work}";
    let run = ["run", "--exec", exec, "--protocol", "Token", "--no-controls", "--for", "1"];
    let missing = ["--administrator", "no-such-program"];
    let played = prove(Some(&vhost.url()), &[&run[..], &missing].concat()).await;
    let text = text(&played);
    assert_eq!(played.status.code(), Some(2), "{text}");
    assert!(
        text.contains("the administrator \"no-such-program\" could not create the lock"),
        "{text}"
    );
    assert!(text.contains("or name another driver with --administrator"), "{text}");
}
