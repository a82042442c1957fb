//! The chart's admission policies, tested on the API server in a separate namespace. The
//! policies that apply to other tests stay unchanged.

use std::time::{Duration, Instant};

use lockkeeper_api::all_crds;
use lockkeeper_testkit::environment::random;
use serde_json::{Value, json};

use crate::chart::{DRY_RUN, Restricted, kubectl, rendered, rendered_as};

/// Policies for one namespace. Deleted when dropped.
struct Policies {
    release: String,
    namespace: Restricted,
}

impl Policies {
    /// Enforces the policies in a new namespace.
    fn new() -> Self {
        Self { release: format!("test-{}", random()), namespace: Restricted::new() }
    }

    fn enforce(&self) {
        assert!(self.enforce_kind("ValidatingAdmissionPolicy") >= 6);
    }

    /// Enforces the policies of this kind, with their bindings. Returns their number.
    fn enforce_kind(&self, kind: &str) -> usize {
        let namespace = &self.namespace.0;
        let values = format!("watchNamespaces: [{namespace}]\npolicies: {{addFinalizer: true}}");
        let mut objects = rendered_as(&self.release, "lockkeeper-system", &values, &[]).unwrap();
        objects.retain(|object| object["kind"].as_str().unwrap().starts_with(kind));
        kubectl(&["create", "-f", "-"], Some(&objects)).unwrap();
        objects.len()
    }

    /// Applies an object, or only validates it.
    fn apply(&self, dry_run: bool, kind: &str, name: &str, spec: &Value) -> Result<String, String> {
        let object = json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace.0}, "spec": spec,
        });
        let mut arguments = DRY_RUN.to_vec();
        arguments.retain(|argument| dry_run || !argument.starts_with("--dry-run"));
        kubectl(&arguments, Some(&[object]))
    }

    /// Returns only the warnings of these policies: the chart of the whole test run has
    /// some too.
    fn warnings(&self, said: &str) -> Vec<String> {
        let ours = |line: &&str| line.starts_with("Warning") && line.contains(&self.release);
        said.lines().filter(ours).map(ToOwned::to_owned).collect()
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        let ours = format!("app.kubernetes.io/instance={}", self.release);
        let kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,\
                     mutatingadmissionpolicies,mutatingadmissionpolicybindings";
        let _ = kubectl(&["delete", kinds, "-l", &ours, "--wait=false"], None);
    }
}

/// The API server takes a moment to enforce a new policy.
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
    // An object from before can still be changed, so that its finalizer can be removed.
    let mut changed = before;
    changed["slots"] = 2.into();
    policies.apply(false, "Semaphore", "before", &changed).unwrap();
}

#[test]
fn a_new_object_has_the_finalizer_and_keeps_it_when_it_is_applied_again() {
    let policies = Policies::new();
    assert_eq!(policies.enforce_kind("MutatingAdmissionPolicy"), 2);
    let namespace = &policies.namespace.0;
    let finalizers = |resource: &str| {
        let path = "-o=jsonpath={.metadata.finalizers}";
        kubectl(&["get", resource, "new", "-n", namespace, path], None).unwrap()
    };
    for (kind, resource, spec) in
        [("Semaphore", "sem", json!({"slots": 1})), ("PressureQueue", "pq", json!({"bound": 1}))]
    {
        eventually("the policy is in force", || {
            let _ = kubectl(&["delete", resource, "new", "-n", namespace, "--wait=false"], None);
            // Until the API server knows the definitions, its answer is 503.
            policies.apply(false, kind, "new", &spec).is_ok()
                && finalizers(resource) == r#"["lockkeeper.dev/cleanup"]"#
        });
        // The user's field manager does not own it, so it stays.
        policies.apply(false, kind, "new", &spec).unwrap();
        assert_eq!(finalizers(resource), r#"["lockkeeper.dev/cleanup"]"#);
        // There is no operator that would remove it.
        let none = r#"--patch={"metadata":{"finalizers":null}}"#;
        kubectl(&["patch", resource, "new", "-n", namespace, "--type=merge", none], None).unwrap();
        policies.apply(false, kind, "new", &spec).unwrap();
        assert_eq!(finalizers(resource), "", "a change of an object adds nothing");
    }
}

#[test]
fn a_finalizer_is_only_added_on_request_where_the_server_can_and_the_operator_watches() {
    let rendered = |values: &str, version: &str| {
        let version = ["--kube-version", version];
        let objects = rendered_as("other", "lockkeeper-system", values, &version)?;
        let mutating = |object: &&Value| {
            object["kind"].as_str().unwrap().starts_with("MutatingAdmissionPolicy")
        };
        Ok::<_, String>(objects.iter().filter(mutating).count())
    };
    let added = "policies: {addFinalizer: true}";
    assert_eq!((rendered("", "1.36.0").unwrap(), rendered(added, "1.36.0").unwrap()), (0, 2));
    let said = rendered(added, "1.35.4").unwrap_err();
    assert!(said.contains("requires Kubernetes 1.36, and the cluster has v1.35.4"), "{said}");
    let selected = format!("watchLabelSelector: stage!=test\n{added}");
    let said = rendered(&selected, "1.36.0").unwrap_err();
    assert!(said.contains("not possible together with watchLabelSelector"), "{said}");
    assert_eq!(rendered("policies: {enabled: false, addFinalizer: true}", "1.36.0").unwrap(), 0);
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
fn on_the_default_connection_a_vhost_or_database_is_refused_at_creation() {
    let policies = Policies::new();
    policies.enforce();
    let refused = |kind: &str, spec: &Value| policies.apply(true, kind, "new", spec);
    let (vhost, database) =
        (json!({"slots": 1, "vhost": "prod"}), json!({"redisReference": {"database": 3}}));
    eventually("the policy is in force", || refused("Semaphore", &vhost).is_err());
    eventually("that of queues, too", || refused("PressureQueue", &database).is_err());
    let said = refused("Semaphore", &vhost).unwrap_err();
    assert!(said.contains("default connection vhost can't be set"), "{said}");
    let said = refused("PressureQueue", &database).unwrap_err();
    assert!(said.contains("default connection redisReference.database can't be set"), "{said}");
    let secret = json!({"connectionSecret": {"name": "own"}});
    let mut with_database = secret.clone();
    with_database["database"] = 3.into();
    for (kind, spec) in [
        ("Semaphore", json!({"slots": 1, "vhost": "prod", "rabbitmqClusterReference": secret})),
        ("PressureQueue", json!({"redisReference": with_database})),
        ("PressureQueue", json!({"redisReference": {"prefix": "ci"}})),
    ] {
        policies.apply(true, kind, "new", &spec).unwrap_or_else(|said| panic!("{spec}: {said}"));
    }
    let about_places = |values: &str| {
        let objects = rendered("lockkeeper-system", values);
        let is = |object: &&Value| {
            object["kind"] == "ValidatingAdmissionPolicy"
                && object["metadata"]["name"].as_str().unwrap().contains("-places-")
        };
        objects.iter().filter(is).count()
    };
    assert_eq!((about_places(""), about_places("allowAnyVhost: true")), (2, 0));
}

#[test]
fn removing_slots_that_are_held_causes_a_warning() {
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
    // The change is applied despite the warning. A change that revokes no slot causes no
    // warning.
    assert_eq!(slots(false, 2).len(), 1);
    assert!(slots(false, 2).is_empty());
    let scaled = semaphore(&["scale", "semaphore", "deploy", "--replicas=1"]);
    assert!(policies.warnings(&scaled).is_empty(), "a Scale has no number of held slots: {scaled}");
}

/// Returns the paths of all nullable fields of a kind's spec or status.
fn nullable(kind: &str, part: &str) -> Vec<Vec<String>> {
    fn walk(schema: &Value, path: &[String], found: &mut Vec<Vec<String>>) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = [path, std::slice::from_ref(name)].concat();
            if schema["nullable"] == true {
                found.push(path.clone());
            }
            walk(schema, &path, found);
        }
    }
    let crds: Vec<Value> =
        all_crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    let crd = crds.iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part];
    let mut found = Vec::new();
    walk(schema, &[], &mut found);
    found
}

/// Sets a field to null, or removes it.
fn emptied(spec: &Value, path: &[String], is_null: bool) -> Value {
    let mut spec = spec.clone();
    let (last, parents) = path.split_last().unwrap();
    let mut parent = &mut spec;
    for name in parents {
        parent = &mut parent[name];
        if parent.is_null() {
            *parent = json!({});
        }
    }
    let fields = parent.as_object_mut().unwrap();
    fields.remove(last);
    if is_null {
        fields.insert(last.clone(), Value::Null);
    }
    spec
}

#[test]
fn a_field_of_the_spec_that_is_null_is_absent_to_every_policy() {
    let policies = Policies::new();
    policies.enforce();
    let own = json!({"connectionSecret": {"name": "own"}});
    let (vhost, database) =
        (json!({"slots": 1, "vhost": "prod"}), json!({"redisReference": {"database": 3}}));
    let names = [json!({"slots": 1, "lockName": "theirs.lock"}), json!({"queueName": "theirs.q"})];
    for (kind, spec) in [
        ("Semaphore", &vhost),
        ("PressureQueue", &database),
        ("Semaphore", &names[0]),
        ("PressureQueue", &names[1]),
    ] {
        eventually("the policy is in force", || policies.apply(true, kind, "new", spec).is_err());
    }
    let specs = [
        ("Semaphore", json!({"slots": 1})),
        ("Semaphore", json!({"lockName": "theirs.lock", "rabbitmqClusterReference": own})),
        ("Semaphore", json!({"vhost": "prod", "rabbitmqClusterReference": own})),
        ("Semaphore", json!({"lockName": "theirs.lock", "drain": {"revokeAfter": "1h"}})),
        ("PressureQueue", json!({"bound": 1})),
        ("PressureQueue", json!({"queueName": "theirs.q", "redisReference": own})),
        (
            "PressureQueue",
            json!({"redisReference": {"database": 3, "connectionSecret": {"name": "own"}}}),
        ),
    ];
    let mut objects = Vec::new();
    for (number, (kind, spec)) in specs.iter().enumerate() {
        for path in nullable(kind, "spec") {
            for form in ["null", "absent"] {
                let name = format!("{form}-{number}-{}", path.join(".").to_lowercase());
                let metadata = json!({"name": name, "namespace": policies.namespace.0});
                objects.push(json!({
                    "apiVersion": "lockkeeper.dev/v1alpha1", "kind": kind, "metadata": metadata,
                    "spec": emptied(spec, &path, form == "null"),
                }));
            }
        }
    }
    assert!(objects.len() > 80, "{}", objects.len());
    let create = ["create", "--dry-run=server", "-f", "-"];
    let said = kubectl(&create, Some(&objects)).unwrap_err();
    assert!(!said.contains("resulted in error"), "{said}");
    let refused = |name: &str| said.contains(&format!("\"{name}\""));
    let mut both = [0, 0];
    for pair in objects.chunks(2) {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        let (null, absent) = (refused(&name(&pair[0])), refused(&name(&pair[1])));
        assert_eq!(null, absent, "{}: {said}", pair[0]);
        both[usize::from(null)] += 1;
    }
    assert!(both.iter().all(|count| *count > 3), "{both:?}");
}

#[test]
fn a_field_of_the_status_that_is_null_is_absent_to_every_policy() {
    let policies = Policies::new();
    let namespace = ["--namespace", policies.namespace.0.as_str()];
    let run = |arguments: &[&str], objects: Option<&[Value]>| {
        kubectl(&[arguments, &namespace].concat(), objects)
    };
    for (kind, guard) in [("Semaphore", "Unused"), ("PressureQueue", "Empty")] {
        policies.apply(false, kind, "a", &json!({"deletionGuard": guard})).unwrap();
        let stored = run(&["get", kind, "a", "-o", "json"], None).unwrap();
        let mut stored: Value = serde_json::from_str(&stored).unwrap();
        stored["status"] = json!({});
        // Those that a Scale is made of cannot be null.
        let of_scale = [["slots"], ["selector"]];
        for path in nullable(kind, "status") {
            if path.len() == 1 && !(kind == "Semaphore" && of_scale.iter().any(|of| path == of)) {
                stored["status"] = emptied(&stored["status"], &path, true);
            }
        }
        run(&["replace", "--subresource=status", "-f", "-"], Some(&[stored])).unwrap();
        let stored = run(&["get", kind, "a", "-o", "jsonpath={.status}"], None).unwrap();
        assert!(stored.contains(":null"), "{stored}");
    }
    policies.enforce();
    eventually("the policy is in force", || {
        policies.apply(true, "Semaphore", "new", &json!({"vhost": "prod"})).is_err()
    });
    for arguments in [
        &["delete", "semaphore", "a", "--dry-run=server"][..],
        &["delete", "pressurequeue", "a", "--dry-run=server"],
        &["scale", "semaphore", "a", "--replicas=0"],
    ] {
        run(arguments, None).unwrap_or_else(|said| panic!("{arguments:?}: {said}"));
    }
    let said = policies.apply(true, "Semaphore", "a", &json!({"slots": 0})).unwrap();
    assert!(policies.warnings(&said).is_empty(), "{said}");
}
