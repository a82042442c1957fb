//! The verdicts of kstatus, Argo CD and Flux on every status that the operators of this
//! test run wrote (from the API server's audit log), and on every reason in
//! docs/conditions.md. dev/test runs it last. It first makes a short run of its own, so
//! that there is always something to check.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_testkit::audit::Reader;
use lockkeeper_testkit::evaluator::{TOOLS, Verdicts};
use lockkeeper_testkit::world;
use lockkeeper_testkit::world::in_a_world;
use serde_json::{Value, json};

/// The contents of docs/conditions.md.
struct Documented {
    /// The state that follows from a reason: `Ready`, `reconciling` or `stalled`.
    reasons: BTreeMap<String, String>,
    /// The verdict of each tool, by the state of the object.
    verdicts: BTreeMap<String, [String; 3]>,
}

impl Documented {
    fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/conditions.md");
        let text = std::fs::read_to_string(path).unwrap();
        let section = |title: &str| {
            let start = text.find(&format!("\n## {title}\n")).unwrap();
            let rest = &text[start + 1..];
            rest.find("\n## ").map_or(rest, |end| &rest[..end])
        };
        let mut reasons = BTreeMap::new();
        let mut then = None;
        for row in section("Reasons of Ready, Reconciling and Stalled").lines().map(cells) {
            if row.first().is_some_and(|cell| *cell == "reason") {
                then = row.iter().position(|cell| *cell == "then");
            }
            let Some(reason) = row.first().and_then(|cell| cell.strip_prefix('`')) else {
                continue;
            };
            let class = match row[then.unwrap()] {
                then if then.starts_with("reconciling") => "reconciling",
                "stalled" => "stalled",
                "–" if row.contains(&"True") => "Ready",
                // Only in the operator's log.
                "–" if row.iter().any(|cell| cell.starts_with("Only in")) => continue,
                other => panic!("{reason}: {other}"),
            };
            reasons.insert(reason.trim_end_matches('`').to_owned(), class.to_owned());
        }
        assert!(reasons.len() > 40, "{}", reasons.len());

        let mut verdicts = BTreeMap::new();
        for row in section("What GitOps tools make of it").lines().map(cells) {
            if let [object, tools @ ..] = row.as_slice()
                && let Ok(tools) = <[&str; 3]>::try_from(tools)
            {
                verdicts.insert((*object).to_owned(), tools.map(ToOwned::to_owned));
            }
        }
        assert_eq!(verdicts["the object"], TOOLS);
        Self { reasons, verdicts }
    }

    /// Returns the state of the object, in the words of the table.
    fn is(&self, object: &Value) -> String {
        let suspended = object["spec"]["suspend"] == true;
        if object["metadata"]["deletionTimestamp"].is_string() {
            return "is being deleted".to_owned();
        }
        if object["status"].is_null() {
            return "has no status yet".to_owned();
        }
        if object["status"]["observedGeneration"] != object["metadata"]["generation"] {
            return "has a status about an older spec".to_owned();
        }
        let reason = deciding_reason(object);
        let class = self.reasons.get(&reason).unwrap_or_else(|| {
            panic!("{reason} is not in docs/conditions.md: {}", object["status"]["conditions"])
        });
        match class.as_str() {
            "stalled" if reason == "Suspended" => "stalled, `Suspended`".to_owned(),
            "Ready" if suspended => "Ready, `suspend: true`".to_owned(),
            class => class.to_owned(),
        }
    }

    /// Compares the tools' verdicts on each object with the table.
    fn compare(&self, objects: &[Value]) {
        for (object, said) in objects.iter().zip(Verdicts::of_the_examples().on(objects)) {
            let is = self.is(object);
            for ((tool, said), expected) in TOOLS.iter().zip(said).zip(&self.verdicts[&is]) {
                assert!(
                    said == *expected || expected == "–",
                    "{tool} says {said} instead of {expected}, because it {is}: {object:#}"
                );
            }
        }
    }
}

/// Returns the cells of a row of a table.
fn cells(line: &str) -> Vec<&str> {
    let inner = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |"));
    inner.map_or_else(Vec::new, |inner| inner.split(" | ").map(str::trim).collect())
}

/// Returns the reason of Reconciling or Stalled, if present, otherwise of Ready: the word
/// from which a reader concludes the state of the object.
fn deciding_reason(object: &Value) -> String {
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let find = |type_: &str| conditions.iter().find(|condition| condition["type"] == type_);
    let deciding = find("Reconciling").or_else(|| find("Stalled")).or_else(|| find("Ready"));
    deciding.unwrap()["reason"].as_str().unwrap().to_owned()
}

/// Returns the properties that tools can distinguish: deletion, generation, suspension,
/// and types, statuses and reasons of the conditions. One of several equal statuses is
/// enough.
fn outline(object: &Value) -> String {
    let conditions = object["status"]["conditions"].as_array();
    let conditions: Vec<[&Value; 3]> = conditions
        .into_iter()
        .flatten()
        .map(|condition| ["type", "status", "reason"].map(|name| &condition[name]))
        .collect();
    json!([
        object["kind"],
        object["metadata"]["deletionTimestamp"].is_string(),
        object["metadata"]["generation"] == object["status"]["observedGeneration"],
        object["spec"]["suspend"],
        conditions,
    ])
    .to_string()
}

/// Returns every object after an operator had written its status, without duplicates.
fn written() -> Vec<Value> {
    let mut found = BTreeMap::new();
    for request in Reader::from_the_start().read() {
        if request.is_by_an_operator()
            && request.group() == "lockkeeper.dev"
            && request.resource().ends_with("/status")
            && request.code() == 200
        {
            let entry: Value = serde_json::from_str(&request.line).unwrap();
            let object = entry["responseObject"].clone();
            // Finished at the first reconcile, without a condition to report.
            if object["status"]["conditions"].is_array() {
                found.entry(outline(&object)).or_insert(object);
            }
        }
    }
    found.into_values().collect()
}

#[tokio::test]
async fn every_status_of_the_run_has_its_documented_health_in_git_ops_tools() {
    in_a_world("verdicts", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore("still", "slots: 2, suspend: true").await;
        world.queue("frames", "bound: 2").await;
        world.secret("wrong", &[("uri", "amqp://127.0.0.1:1".to_owned())]).await;
        let spec = "rabbitmqClusterReference: {connectionSecret: {name: wrong}}";
        world.apply::<lockkeeper_api::Semaphore>("lost", &format!("{{{spec}}}")).await.unwrap();
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        for (name, reason) in [("still", "Suspended"), ("lost", "BrokerUnreachable")] {
            let so =
                |object: &lockkeeper_api::Semaphore| world::has_reason(object, "Ready", reason);
            world.until(name, reason, world::PATIENCE, so).await;
        }

        let documented = Documented::read();
        let objects = written();
        let reasons: BTreeSet<String> = objects.iter().map(deciding_reason).collect();
        for needed in ["InSync", "Suspended", "BrokerUnreachable"] {
            assert!(reasons.contains(needed), "the audit log has no {needed}: {reasons:?}");
        }
        documented.compare(&objects);
        let never = documented.reasons.keys().filter(|reason| !reasons.contains(*reason));
        println!(
            "{} kinds of status were written, with {} reasons; never: {}",
            objects.len(),
            reasons.len(),
            never.map(String::as_str).collect::<Vec<_>>().join(" ")
        );
    })
    .await;
}

/// Returns an object with the conditions that belong to a reason.
fn with(reason: &str, class: &str) -> Value {
    let condition = |type_: &str, status: &str| {
        json!({
            "type": type_, "status": status, "reason": reason, "message": reason,
            "observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let conditions = match class {
        "Ready" => vec![condition("Ready", "True")],
        "reconciling" => vec![condition("Ready", "False"), condition("Reconciling", "True")],
        "stalled" => vec![condition("Ready", "False"), condition("Stalled", "True")],
        _ => panic!("{class}"),
    };
    json!({
        "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
        "metadata": {"name": "deploy", "namespace": "ci", "generation": 3},
        "spec": {"slots": 3, "suspend": reason == "Suspended"},
        "status": {"observedGeneration": 3, "conditions": conditions},
    })
}

#[test]
fn every_documented_reason_has_a_verdict_and_so_has_every_line_of_the_table() {
    let documented = Documented::read();
    let mut objects: Vec<Value> =
        documented.reasons.iter().map(|(reason, class)| with(reason, class)).collect();
    let changed = |pointer: &str, field: &str, value: Value| {
        let mut object = with("InSync", "Ready");
        object.pointer_mut(pointer).unwrap()[field] = value;
        object
    };
    objects.push(changed("/spec", "suspend", json!(true)));
    objects.push(changed("/metadata", "generation", json!(4)));
    objects.push(changed("/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z")));
    let mut fresh = with("InSync", "Ready");
    fresh.as_object_mut().unwrap().remove("status");
    objects.push(fresh);
    documented.compare(&objects);

    let mut seen: BTreeSet<String> = objects.iter().map(|object| documented.is(object)).collect();
    seen.insert("the object".to_owned());
    let lines: BTreeSet<String> = documented.verdicts.keys().cloned().collect();
    assert_eq!(lines.difference(&seen).find(|line| !line.starts_with('-')), None);
}
