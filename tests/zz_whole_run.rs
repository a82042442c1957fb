//! A look back over everything that the operators of this test run did, in the
//! API server's audit log and in their own logs: never forbidden, nothing
//! malformed, no password anywhere. Test binaries run in alphabetical order, so
//! that this one is the last; so that it never judges nothing, it makes a little
//! run of its own first.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::Event as CoreEvent;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use lockkeeper::api::{PressureQueue, Semaphore};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[path = "support/audit.rs"]
mod audit;
#[path = "support/environment.rs"]
mod environment;
#[path = "support/world.rs"]
mod world;

use audit::{Reader, Request};
use environment::variable;
use world::{PATIENCE, eventually, in_a_world};

/// What every password of the test servers starts with.
const CANARY: &str = "canary-";

#[tokio::test]
async fn in_the_whole_run_nothing_was_forbidden_malformed_or_told_a_password() {
    in_a_world("last", async |world| {
        let operator = world.operator().await;
        world.semaphore("deploy", "slots: 2").await;
        world.queue("frames", "bound: 2").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let told = async || !world.events("deploy").await.is_empty();
        eventually("an event tells of it", PATIENCE, told).await;
        assert!(operator.logged().contains(&world.namespace), "the log tells of it");
        let metrics = operator.metrics().await;
        assert!(metrics.contains(&world.namespace), "the metrics tell of it");
        assert!(!has_password(&metrics), "{}", hidden(&metrics));

        let requests = Reader::from_the_start().read();
        nothing_was_forbidden(&requests);
        nothing_was_malformed(&requests);
        no_request_has_a_password(&requests);
        no_log_has_a_password(&world.namespace);
        no_object_has_a_password(&world.client).await;
        println!("{}", used_rights(&requests));
    })
    .await;
}

/// The operators' own requests; there must have been some.
fn by_operators(requests: &[Request]) -> Vec<&Request> {
    let all: Vec<&Request> = requests.iter().filter(|r| r.is_by_an_operator()).collect();
    let status_writes = all.iter().filter(|r| r.resource().ends_with("/status")).count();
    assert!(status_writes > 0, "the audit log knows of no status, so it shows nothing");
    all
}

fn nothing_was_forbidden(requests: &[Request]) {
    let forbidden: Vec<&str> = by_operators(requests)
        .into_iter()
        .filter(|request| {
            // Who has every right is still refused an event in a namespace that
            // is on its way out: the one answer of this kind that is no fault.
            let too_late =
                request.is_authorized() && request.refusal().contains("being terminated");
            !request.is_authorized() || request.code() == 401 || request.code() == 403 && !too_late
        })
        .map(|request| request.line.as_str())
        .collect();
    assert!(forbidden.is_empty(), "{} requests, such as {}", forbidden.len(), forbidden[0]);
}

/// A status or an event that the API server can't accept is a bug of whoever
/// wrote it.
fn nothing_was_malformed(requests: &[Request]) {
    let malformed: Vec<&str> = by_operators(requests)
        .into_iter()
        .filter(|r| r.resource().ends_with("/status") || r.resource() == "events")
        .filter(|request| matches!(request.code(), 400 | 405 | 406 | 413 | 415 | 422))
        .map(|request| request.line.as_str())
        .collect();
    assert!(malformed.is_empty(), "{} requests, such as {}", malformed.len(), malformed[0]);
}

/// Every status and event that was ever written, with all that it said. Whoever
/// made the request: a password in a spec or a test's own event would also show.
fn no_request_has_a_password(requests: &[Request]) {
    let ours = |r: &&Request| r.group() == "lockkeeper.dev" || r.resource() == "events";
    let with_bodies: Vec<&Request> = requests.iter().filter(ours).collect();
    let events = with_bodies.iter().filter(|r| r.resource() == "events").count();
    assert!(events > 0, "the audit log knows of no event");
    for request in with_bodies {
        assert!(!has_password(&request.line), "{}", hidden(&request.line));
    }
}

fn no_log_has_a_password(namespace: &str) {
    let folder = format!("{}/operator-logs", variable("LOCKKEEPER_DEV_DIR"));
    let mut seen_our_own = false;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        seen_our_own |= text.contains(namespace);
        for line in text.lines() {
            assert!(!has_password(line), "{}: {}", path.display(), hidden(line));
        }
    }
    assert!(seen_our_own, "the logs of operators are not where they were looked for");
}

/// What is in the cluster now, events of either API included.
async fn no_object_has_a_password(client: &Client) {
    async fn of<K>(client: &Client) -> usize
    where
        K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        let all = Api::<K>::all(client.clone()).list(&ListParams::default()).await.unwrap();
        for object in &all.items {
            let text = serde_json::to_string(object).unwrap();
            assert!(!has_password(&text), "{}", hidden(&text));
        }
        all.items.len()
    }
    assert!(of::<Semaphore>(client).await > 0);
    assert!(of::<PressureQueue>(client).await > 0);
    assert!(of::<Event>(client).await > 0);
    assert!(of::<CoreEvent>(client).await > 0);
}

/// A password as it is, or what all of them start with.
fn has_password(text: &str) -> bool {
    text.contains(CANARY) || passwords().iter().any(|password| text.contains(password))
}

/// The passwords of the test servers: what stands between user and host.
fn passwords() -> &'static [String] {
    static PASSWORDS: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    PASSWORDS.get_or_init(|| {
        ["AMQP_URL", "RABBITMQ_MANAGEMENT_URL", "REDIS_URL"]
            .map(|name| {
                let url = variable(name);
                let password = url.split('@').next().unwrap().rsplit(':').next().unwrap();
                assert!(password.starts_with(CANARY), "the password of {name} is no canary");
                password.to_owned()
            })
            .into()
    })
}

/// A line that leaks must not leak again into the output of the tests.
fn hidden(text: &str) -> String {
    let at = text.find(CANARY).unwrap_or_default();
    let start = text[..at].char_indices().rev().nth(300).map_or(0, |(start, _)| start);
    format!("a password after: …{}", &text[start..at])
}

/// Which rights of the chart's the run used, for whoever wants to take one away.
fn used_rights(requests: &[Request]) -> String {
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    for r in by_operators(requests) {
        *used.entry(format!("{} {} {}", r.verb(), r.group(), r.resource())).or_default() += 1;
    }
    used.iter().fold(String::from("requests of operators:"), |mut text, (right, times)| {
        let _ = write!(text, "\n{times:8} {right}");
        text
    })
}
