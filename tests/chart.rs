//! The chart: what helm makes of it is accepted by a real API server, gives the
//! operator exactly the rights that it needs, and runs where the Pod Security
//! level is "restricted".

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

#[path = "support/authority.rs"]
mod authority;
#[path = "support/environment.rs"]
mod environment;
#[path = "chart/files.rs"]
mod files;
#[path = "chart/installing.rs"]
mod installing;
#[path = "support/own_server.rs"]
mod own_server;
#[path = "chart/policies.rs"]
mod policies;
#[path = "chart/rendering.rs"]
mod rendering;
#[path = "chart/values.rs"]
mod values;

use environment::{random, variable};

/// Every right of the operator (group, resource, verb), and what for.
const RIGHTS: &[(&str, &str, &str, &str)] = &[
    ("lockkeeper.dev", "semaphores", "list", "to learn what is wanted"),
    ("lockkeeper.dev", "semaphores", "watch", "to learn what is wanted now"),
    ("lockkeeper.dev", "semaphores", "patch", "its finalizer"),
    ("lockkeeper.dev", "semaphores/status", "patch", "to report, by server-side apply"),
    ("lockkeeper.dev", "pressurequeues", "list", "to learn what is wanted"),
    ("lockkeeper.dev", "pressurequeues", "watch", "to learn what is wanted now"),
    ("lockkeeper.dev", "pressurequeues", "patch", "its finalizer"),
    ("lockkeeper.dev", "pressurequeues/status", "patch", "to report, by server-side apply"),
    ("", "secrets", "get", "the connection that an object names; no Secret is ever listed"),
    ("rabbitmq.com", "rabbitmqclusters", "get", "the broker that a Semaphore names"),
    ("", "namespaces", "get", "whether it is being deleted, where a Secret went first"),
    ("events.k8s.io", "events", "create", "to tell what happened"),
    ("events.k8s.io", "events", "patch", "to count what happens again"),
];

/// Values under which the chart is tried: none, and as many as go together.
const VALUES: [&str; 2] = ["", FULL];
const FULL: &str = include_str!("chart/full.yaml");
/// The values that leave things out.
const WITHOUT: &str = include_str!("chart/without.yaml");

/// The chart's objects under a release name that is not the chart's, so that the
/// installation which all tests use is left alone.
fn rendered(namespace: &str, values: &str) -> Vec<Value> {
    rendered_as("other", namespace, values, &[]).unwrap()
}

/// The same with another release name and more arguments, or what helm has
/// against it. Values are YAML.
fn rendered_as(
    release: &str,
    namespace: &str,
    values: &str,
    arguments: &[&str],
) -> Result<Vec<Value>, String> {
    let mut helm = Command::new("helm");
    helm.args(["template", release, "charts/lockkeeper", "--namespace", namespace, "-f", "-"])
        .args(["--kube-version", &server_version()])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    given(&mut helm, values).map(|text| documents(&text))
}

/// The objects of a text with several.
fn documents(text: &str) -> Vec<Value> {
    serde_yaml::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).unwrap())
        .filter(|document| !document.is_null())
        .collect()
}

/// Runs a command with this on its standard input. What it has said; its errors,
/// if it failed.
fn given(command: &mut Command, input: &str) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("helm and kubectl are on PATH: . target/test/env");
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = writing.join().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        // Warnings too: the API server warns of what it will refuse one day.
        Ok(text(&output.stdout) + &text(&output.stderr))
    } else {
        Err(text(&output.stderr))
    }
}

fn server_version() -> String {
    let version: Value =
        serde_json::from_str(&kubectl(&["get", "--raw", "/version"], None).unwrap()).unwrap();
    version["gitVersion"].as_str().unwrap().to_owned()
}

/// Runs kubectl as administrator, with objects on its standard input.
fn kubectl(arguments: &[&str], objects: Option<&[Value]>) -> Result<String, String> {
    variable("KUBECONFIG");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects.unwrap_or_default()});
    given(Command::new("kubectl").args(arguments), &list.to_string())
}

/// A namespace that takes only pods of the level "restricted"; gone with this.
struct Restricted(String);

impl Restricted {
    fn new() -> Self {
        let name = format!("chart-{}", random());
        let levels = ["enforce", "warn"]
            .map(|mode| (format!("pod-security.kubernetes.io/{mode}"), "restricted".to_owned()));
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": BTreeMap::from(levels)},
        });
        kubectl(&["create", "-f", "-"], Some(&[namespace])).unwrap();
        Self(name)
    }
}

impl Drop for Restricted {
    fn drop(&mut self) {
        let _ = kubectl(&["delete", "namespace", &self.0, "--wait=false"], None);
    }
}

/// The one object of a kind.
fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("the chart has no {kind}"));
    assert!(found.next().is_none(), "the chart has two of {kind}");
    object
}

const DRY_RUN: [&str; 6] =
    ["apply", "--server-side", "--dry-run=server", "--field-manager=chart-test", "-f", "-"];

/// Definitions of these are the Prometheus operator's, and may be missing.
fn is_foreign(object: &Value) -> bool {
    object["apiVersion"].as_str().unwrap().starts_with("monitoring.coreos.com/")
}

#[test]
fn every_object_of_the_chart_is_accepted_without_a_warning() {
    let namespace = Restricted::new();
    let watched = format!("watchNamespaces: [{}]", namespace.0);
    for values in [VALUES[0], FULL, WITHOUT, &watched] {
        let mut objects = rendered(&namespace.0, values);
        objects.retain(|object| !is_foreign(object));
        let dry_run: Vec<&str> =
            DRY_RUN.into_iter().chain(["--force-conflicts", "--validate=strict"]).collect();
        let said = kubectl(&dry_run, Some(&objects)).unwrap();
        assert_eq!(said.lines().count(), objects.len(), "{said}");
        assert!(!said.contains("Warning"), "{said}");
    }
}

#[test]
fn the_operators_pod_runs_where_only_restricted_pods_may() {
    let namespace = Restricted::new();
    for values in VALUES {
        let objects = rendered(&namespace.0, values);
        let account = of_kind(&objects, "ServiceAccount").clone();
        kubectl(&["apply", "-f", "-"], Some(&[account])).unwrap();
        let template = &of_kind(&objects, "Deployment")["spec"]["template"];
        let mut pod = template.clone();
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["name"] = "operator".into();
        pod["metadata"]["namespace"] = namespace.0.as_str().into();
        // The API server itself judges, not a list of fields.
        kubectl(&DRY_RUN, Some(&[pod.clone()])).unwrap();

        let container = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(
            container["readOnlyRootFilesystem"], true,
            "beyond the level: nothing is written"
        );
        // That it judges at all: one setting less, and the pod is refused.
        pod["spec"]["containers"][0]["securityContext"]["capabilities"] = Value::Null;
        let refused = kubectl(&DRY_RUN, Some(&[pod])).unwrap_err();
        assert!(refused.contains("violates PodSecurity"), "{refused}");
    }
}

/// What a role allows, and the names to which that is limited.
fn rights_of(role: &Value) -> (BTreeSet<(String, String, String)>, BTreeSet<String>) {
    let texts = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten();
        all.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let (mut given, mut names) = (BTreeSet::new(), BTreeSet::new());
    for rule in role["rules"].as_array().unwrap() {
        let known = ["apiGroups", "resources", "verbs", "resourceNames"];
        assert!(rule.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())));
        names.extend(texts(&rule["resourceNames"]));
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    given.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    (given, names)
}

fn expected_rights() -> BTreeSet<(String, String, String)> {
    RIGHTS
        .iter()
        .map(|(group, resource, verb, _)| ((*group).into(), (*resource).into(), (*verb).into()))
        .collect()
}

/// The role that a binding gives.
fn bound<'a>(objects: &'a [Value], binding: &Value) -> &'a Value {
    let role = &binding["roleRef"];
    let same = |object: &&Value| {
        object["kind"] == role["kind"]
            && object["metadata"]["name"] == role["name"]
            && object["metadata"]["namespace"] == binding["metadata"]["namespace"]
    };
    objects.iter().find(same).expect("a binding's role is there")
}

#[test]
fn the_operator_has_exactly_the_rights_that_it_needs() {
    for (values, secrets) in [("", vec![]), (FULL, vec!["rabbitmq", "redis"])] {
        let objects = rendered("lockkeeper-system", values);
        let binding = of_kind(&objects, "ClusterRoleBinding");
        let (given, names) = rights_of(bound(&objects, binding));
        assert_eq!(given, expected_rights());
        assert_eq!(names, secrets.into_iter().map(ToOwned::to_owned).collect());
        let account = of_kind(&objects, "ServiceAccount");
        assert_eq!(binding["subjects"].as_array().unwrap().len(), 1);
        assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
        let pod = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"];
        assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
    }
}

#[test]
fn the_leader_election_is_about_one_lease_of_the_releases_namespace() {
    for (values, release) in [("", "other-lockkeeper"), (FULL, "other-keeper")] {
        let objects = rendered("lockkeeper-system", values);
        let binding = of_kind(&objects, "RoleBinding");
        assert_eq!(binding["metadata"]["namespace"], "lockkeeper-system");
        let account = of_kind(&objects, "ServiceAccount");
        assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
        let (given, names) = rights_of(bound(&objects, binding));
        let lease = |verb: &str| ("coordination.k8s.io".into(), "leases".into(), verb.into());
        assert_eq!(given, ["create", "get", "update"].map(lease).into());
        assert_eq!(names, [release.to_owned()].into());
    }
}

#[test]
fn an_operator_of_some_namespaces_has_roles_there_and_no_cluster_role() {
    let values = "watchNamespaces: [team-a, team-b]";
    let objects = rendered("lockkeeper-system", values);
    assert!(objects.iter().all(|object| object["kind"] != "ClusterRoleBinding"));
    // The one in the release's namespace is for the Lease.
    let bindings: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == "RoleBinding")
        .filter(|binding| binding["metadata"]["namespace"] != "lockkeeper-system")
        .collect();
    let places: Vec<&Value> = bindings.iter().map(|b| &b["metadata"]["namespace"]).collect();
    assert_eq!(places, ["team-a", "team-b"]);
    let account = of_kind(&objects, "ServiceAccount");
    for binding in bindings {
        assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
        assert_eq!(binding["subjects"][0]["namespace"], "lockkeeper-system");
        let role = bound(&objects, binding);
        assert_eq!(role["kind"], "Role");
        assert_eq!(rights_of(role).0, expected_rights());
    }
    // What is left of cluster roles is for people; nobody has it by this chart.
    let roles: Vec<&str> = objects
        .iter()
        .filter(|object| object["kind"] == "ClusterRole")
        .map(|role| role["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["view", "edit", "revoke"].map(|role| format!("other-lockkeeper-{role}")));
    let none = rendered("lockkeeper-system", &format!("{values}\nrbac: {{userRoles: false}}"));
    assert!(none.iter().all(|object| object["kind"] != "ClusterRole"));
}

#[test]
fn the_default_connections_come_from_a_secret_and_only_where_one_is_named() {
    let environment = |values: &str| -> BTreeMap<String, Value> {
        let objects = rendered("lockkeeper-system", values);
        let container =
            &of_kind(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        let variables = container["env"].as_array().unwrap().iter();
        variables.map(|v| (v["name"].as_str().unwrap().to_owned(), v.clone())).collect()
    };
    let connections = ["AMQP_URL", "RABBITMQ_MANAGEMENT_URL", "REDIS_URL"];
    let without = environment(VALUES[0]);
    let with = environment(VALUES[1]);
    for name in connections {
        assert!(!without.contains_key(name), "{name}");
        assert_eq!(with[name]["valueFrom"]["secretKeyRef"]["name"], "connections");
        assert!(with[name]["value"].is_null(), "no credential in the Deployment");
    }
}

/// The chart sets the operator up by environment and arguments; each must be one
/// that the program knows.
#[test]
fn the_program_knows_every_setting_that_the_chart_makes() {
    let help = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .args(["operator", "--help"])
        .env_clear()
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let settings = ["args", "env"].map(|what| {
        let of = |values: &str| {
            let objects = rendered("lockkeeper-system", values);
            let containers = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"];
            containers["containers"][0][what].as_array().unwrap().clone()
        };
        [of(FULL), of(WITHOUT)].concat()
    });
    let [arguments, variables] = settings;
    for variable in variables {
        let name = variable["name"].as_str().unwrap();
        // Of those with credentials the help does not show the value.
        let known = ["=", "]"].iter().any(|end| help.contains(&format!("[env: {name}{end}")))
            || name.contains("_TLS_") && help.contains(name);
        // The log filter is read before the arguments are.
        assert!(known || ["LOCKKEEPER_LOG", "TZ"].contains(&name), "{name}");
    }
    assert_eq!(arguments[0], "operator");
    for argument in arguments {
        let name = argument.as_str().unwrap().split('=').next().unwrap();
        assert!(help.contains(name), "{argument}");
    }
}
