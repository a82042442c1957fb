//! What the API server checks by the chart's policies, in a namespace of the
//! test's own: the policies that other tests meet are left alone.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::environment::random;
use crate::{DRY_RUN, Restricted, kubectl, rendered, rendered_as};

/// Policies for one namespace; gone with this.
struct Policies {
    release: String,
    namespace: Restricted,
}

impl Policies {
    /// In a new namespace, to be enforced.
    fn new() -> Self {
        Self { release: format!("test-{}", random()), namespace: Restricted::new() }
    }

    fn enforce(&self) {
        let values = format!("watchNamespaces: [{}]", self.namespace.0);
        let mut objects = rendered_as(&self.release, "lockkeeper-system", &values, &[]).unwrap();
        let is_policy = |object: &Value| {
            object["kind"].as_str().unwrap().starts_with("ValidatingAdmissionPolicy")
        };
        objects.retain(is_policy);
        assert!(objects.len() >= 6, "{}", objects.len());
        kubectl(&["create", "-f", "-"], Some(&objects)).unwrap();
    }

    /// Applies an object, for good or only to see what is said.
    fn apply(&self, dry_run: bool, kind: &str, name: &str, spec: &Value) -> Result<String, String> {
        let object = json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace.0}, "spec": spec,
        });
        let mut arguments = DRY_RUN.to_vec();
        arguments.retain(|argument| dry_run || !argument.starts_with("--dry-run"));
        kubectl(&arguments, Some(&[object]))
    }

    /// Only what this one's policies say: the chart of the whole test run has such too.
    fn warnings(&self, said: &str) -> Vec<String> {
        let ours = |line: &&str| line.starts_with("Warning") && line.contains(&self.release);
        said.lines().filter(ours).map(ToOwned::to_owned).collect()
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        let ours = format!("app.kubernetes.io/instance={}", self.release);
        let kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings";
        let _ = kubectl(&["delete", kinds, "-l", &ours, "--wait=false"], None);
    }
}

/// A new policy takes the API server a moment.
fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_mins(2), "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn on_the_default_connection_a_foreign_name_is_refused_at_creation() {
    let policies = Policies::new();
    let before = json!({"slots": 1, "lockName": "theirs.before"});
    policies.apply(false, "Semaphore", "before", &before).unwrap();
    policies.enforce();

    let theirs = json!({"slots": 1, "lockName": "theirs.lock"});
    let refused = |kind: &str, spec: &Value| policies.apply(true, kind, "new", spec).unwrap_err();
    eventually("the policy is in force", || {
        policies.apply(true, "Semaphore", "new", &theirs).is_err()
    });
    eventually("that of queues, too", || {
        policies.apply(true, "PressureQueue", "new", &json!({"queueName": "theirs.q"})).is_err()
    });
    let namespace = &policies.namespace.0;
    let secret = json!({"connectionSecret": {"name": "own"}});
    let said = refused("Semaphore", &theirs);
    let must = format!("lockName must start with \"{namespace}.\": leave it out");
    assert!(said.contains(&must) && said.contains("rabbitmqClusterReference"), "{said}");
    refused("Semaphore", &json!({"slots": 1, "lockName": format!("{namespace}x.lock")}));
    let said = refused("PressureQueue", &json!({"queueName": "theirs.q"}));
    assert!(said.contains("queueName must start with"), "{said}");
    let shared = json!({"queueName": "theirs.q", "redisReference": {"prefix": "ci"}});
    refused("PressureQueue", &shared);

    for (kind, spec) in [
        ("Semaphore", json!({"slots": 1})),
        ("Semaphore", json!({"slots": 1, "lockName": format!("{namespace}.lock")})),
        (
            "Semaphore",
            json!({"slots": 1, "lockName": "theirs.lock", "rabbitmqClusterReference": secret}),
        ),
        ("PressureQueue", json!({"bound": 1})),
        ("PressureQueue", json!({"queueName": format!("{namespace}.q")})),
        ("PressureQueue", json!({"queueName": "theirs.q", "redisReference": secret})),
    ] {
        policies.apply(true, kind, "new", &spec).unwrap_or_else(|said| panic!("{spec}: {said}"));
    }
    // An object of before can still be changed, and so be rid of its finalizer.
    let mut changed = before;
    changed["slots"] = 2.into();
    policies.apply(false, "Semaphore", "before", &changed).unwrap();
}

#[test]
fn where_any_name_is_allowed_no_policy_is_about_names() {
    let names = |values: &str| {
        let objects = rendered("lockkeeper-system", values);
        let about_names = |object: &&Value| {
            object["kind"] == "ValidatingAdmissionPolicy"
                && object["metadata"]["name"].as_str().unwrap().contains("-names-")
        };
        objects.iter().filter(about_names).count()
    };
    assert_eq!((names(""), names("allowAnyName: true")), (2, 0));
}

#[test]
fn whoever_takes_away_slots_that_are_held_is_warned() {
    let policies = Policies::new();
    let slots = |dry_run: bool, slots: u32| {
        let said = policies.apply(dry_run, "Semaphore", "deploy", &json!({"slots": slots}));
        policies.warnings(&said.unwrap())
    };
    slots(false, 5);
    let namespace = ["--namespace", policies.namespace.0.as_str()];
    let semaphore = |arguments: &[&str]| {
        let arguments: Vec<&str> = arguments.iter().chain(&namespace).copied().collect();
        kubectl(&arguments, None).unwrap()
    };
    let held = json!({"status": {"held": 3}}).to_string();
    let patch = ["patch", "semaphore", "deploy", "--subresource=status", "--type=merge", "-p"];
    semaphore(&patch.into_iter().chain([held.as_str()]).collect::<Vec<_>>());
    policies.enforce();
    eventually("the policy is in force", || !slots(true, 2).is_empty());

    let said = slots(true, 2).join("\n");
    assert!(said.contains("slots is now 2, but 3 are held"), "{said}");
    assert!(said.contains("kubectl wait --for=condition=Drained semaphore/deploy"), "{said}");
    for enough in [3, 4, 6] {
        assert!(slots(true, enough).is_empty(), "{enough}");
    }
    // It is done all the same; and a change that takes nothing away says nothing.
    assert_eq!(slots(false, 2).len(), 1);
    assert!(slots(false, 2).is_empty());
    let scaled = semaphore(&["scale", "semaphore", "deploy", "--replicas=1"]);
    assert!(policies.warnings(&scaled).is_empty(), "a Scale does not carry what is held: {scaled}");
}
