//! Checks everything that the operators of this test run did, in the API server's audit
//! log and in their own logs, metrics and traces: no request forbidden, no permission
//! unused, nothing malformed, no password and no private key anywhere. dev/test runs it
//! last. It first makes a short run of its own, so that there is always something to
//! check.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event as CoreEvent;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, Subject,
};
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::audit::{OPERATOR, Reader, Request};
use lockkeeper_testkit::canaries::Canaries;
use lockkeeper_testkit::collector::Collector;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{PATIENCE, eventually, in_a_world};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Set by `dev/test` when it runs every test.
const WHOLE: &str = "LOCKKEEPER_WHOLE_RUN";

#[tokio::test(flavor = "multi_thread")]
async fn in_the_whole_run_nothing_was_forbidden_malformed_or_given_a_password() {
    in_a_world("last", async |world| {
        let collector = Collector::start(Duration::ZERO).await;
        let operator = world.operator_in(&collector.environment(), &[]).await;
        operator.until_ready().await;
        world.semaphore("deploy", "slots: 2").await;
        world.queue("frames", "bound: 2").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let recorded = async || !world.events("deploy").await.is_empty();
        eventually("an event is recorded", PATIENCE, recorded).await;
        collector.span("reconcile", |_| true).await;
        operator.metrics().await;

        let canaries = Canaries::now();
        let requests = Reader::from_the_start().read();
        nothing_was_forbidden(&requests);
        nothing_was_malformed(&requests);
        no_request_has_a_secret(&requests, &canaries);
        no_operator_output_has_a_secret(&world.namespace, &canaries);
        no_log_line_is_debug_output();
        no_object_has_a_secret(&world.client, &canaries).await;
        println!("{}", used_rights(&requests));
        let unused = unused_rights(&requests, &rights(&world.client).await);
        if std::env::var_os(WHOLE).is_some() {
            assert!(canaries.keys() > 0, "no test made a private key");
            assert!(unused.is_empty(), "the chart grants rights that were never used: {unused:#?}");
        } else {
            println!("unused, as not every test has run: {unused:#?}");
        }
    })
    .await;
}

/// Returns the operators' own requests. Fails if there are none.
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
            // Even an account with all permissions cannot create an event in a
            // terminating namespace. This is the only rejection of this kind that is no
            // fault.
            let too_late =
                request.is_authorized() && request.refusal().contains("being terminated");
            !request.is_authorized() || request.code() == 401 || request.code() == 403 && !too_late
        })
        .map(|request| request.line.as_str())
        .collect();
    assert!(forbidden.is_empty(), "{} requests, such as {}", forbidden.len(), forbidden[0]);
}

/// A status or an event that the API server rejects as malformed is a bug of its writer.
fn nothing_was_malformed(requests: &[Request]) {
    let malformed: Vec<&str> = by_operators(requests)
        .into_iter()
        .filter(|r| r.resource().ends_with("/status") || r.resource() == "events")
        .filter(|request| matches!(request.code(), 400 | 405 | 406 | 413 | 415 | 422))
        .map(|request| request.line.as_str())
        .collect();
    assert!(malformed.is_empty(), "{} requests, such as {}", malformed.len(), malformed[0]);
}

/// Checks every status and event that was ever written, with all its texts, by any
/// client. A secret in a spec or in a test's own event would also be found.
fn no_request_has_a_secret(requests: &[Request], canaries: &Canaries) {
    let ours = |r: &&Request| r.group() == "lockkeeper.dev" || r.resource() == "events";
    let with_bodies: Vec<&Request> = requests.iter().filter(ours).collect();
    let events = with_bodies.iter().filter(|r| r.resource() == "events").count();
    assert!(events > 0, "the audit log knows of no event");
    for request in with_bodies {
        canaries.not_in("a request", &request.line);
    }
}

/// Checks the logs, metrics and traces of the operators.
fn no_operator_output_has_a_secret(namespace: &str, canaries: &Canaries) {
    let folder = format!("{}/operator-logs", variable("LOCKKEEPER_DEV_DIR"));
    let mut of_our_own = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        if text.contains(namespace) {
            of_our_own.insert(path.extension().unwrap().to_string_lossy().into_owned());
        }
        canaries.not_in(&path.display().to_string(), &text);
    }
    let expected = ["log", "metrics", "traces"].map(ToOwned::to_owned);
    assert_eq!(of_our_own, expected.into(), "they are not where they were looked for");
}

/// Checks that the operators log what a value means, not how Rust stores it.
fn no_log_line_is_debug_output() {
    let folder = format!("{}/operator-logs", variable("LOCKKEEPER_DEV_DIR"));
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "log") {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            let dumps = ["Status {", "Some(", "ListMeta", "ApiError", "ServiceError", "HyperError"];
            let dump = text.lines().find(|line| dumps.iter().any(|dump| line.contains(dump)));
            assert_eq!(dump, None, "{}", path.display());
        }
    }
}

/// Checks the current objects of the cluster, including events of both APIs.
async fn no_object_has_a_secret(client: &Client, canaries: &Canaries) {
    async fn of<K>(client: &Client, canaries: &Canaries) -> usize
    where
        K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        let all = Api::<K>::all(client.clone()).list(&ListParams::default()).await.unwrap();
        for object in &all.items {
            canaries.not_in("an object", &serde_json::to_string(object).unwrap());
        }
        all.items.len()
    }
    assert!(of::<Semaphore>(client, canaries).await > 0);
    assert!(of::<PressureQueue>(client, canaries).await > 0);
    assert!(of::<Event>(client, canaries).await > 0);
    assert!(of::<CoreEvent>(client, canaries).await > 0);
}

/// Verb, group and resource.
type Right = [String; 3];

/// Returns the permissions that the chart's roles grant to the operator. Those that tests
/// add in their own namespaces are not included.
async fn rights(client: &Client) -> BTreeSet<Right> {
    let namespace = OPERATOR.rsplit(':').nth(1).unwrap();
    let is_the_operator = |subjects: Option<Vec<Subject>>| {
        let account = |s: Subject| [s.namespace.unwrap_or_default(), s.name].join(":");
        subjects.into_iter().flatten().any(|subject| OPERATOR.ends_with(&account(subject)))
    };
    let all = ListParams::default();
    let mut found: Vec<PolicyRule> = Vec::new();
    for binding in Api::<ClusterRoleBinding>::all(client.clone()).list(&all).await.unwrap() {
        if is_the_operator(binding.subjects) {
            let roles: Api<ClusterRole> = Api::all(client.clone());
            found.extend(roles.get(&binding.role_ref.name).await.unwrap().rules.unwrap());
        }
    }
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    for binding in bindings.list(&all).await.unwrap() {
        if is_the_operator(binding.subjects) {
            let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
            found.extend(roles.get(&binding.role_ref.name).await.unwrap().rules.unwrap());
        }
    }
    let mut rights = BTreeSet::new();
    for PolicyRule { verbs, api_groups, resources, .. } in found {
        for group in api_groups.unwrap_or_default() {
            for resource in resources.iter().flatten() {
                for verb in &verbs {
                    rights.insert([verb.clone(), group.clone(), resource.clone()]);
                }
            }
        }
    }
    assert!(!rights.is_empty(), "the chart's roles were not found");
    rights
}

/// Returns the permissions that no operator used.
fn unused_rights(requests: &[Request], given: &BTreeSet<Right>) -> Vec<String> {
    let used: BTreeSet<Right> = by_operators(requests)
        .into_iter()
        .map(|r| [r.verb().to_owned(), r.group().to_owned(), r.resource()])
        .collect();
    assert!(given.intersection(&used).count() > 5, "even the little run here uses some");
    given.difference(&used).map(|right| right.join(" ")).collect()
}

/// Reports which of the chart's permissions the run used, to find permissions to remove.
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
