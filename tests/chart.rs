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

#[path = "support/environment.rs"]
mod environment;

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
    ("", "namespaces", "get", "whether it is being deleted, where a Secret went first"),
    ("events.k8s.io", "events", "create", "to tell what happened"),
    ("events.k8s.io", "events", "patch", "to count what happens again"),
];

/// Values under which the chart is tried: the smallest and the fullest.
const VALUES: [&[&str]; 2] = [
    &[],
    &[
        "defaultConnections.secretName=connections",
        "allowAnyName=true",
        "log.filter=debug",
        "imagePullSecrets[0].name=registry",
        "podAnnotations.a=b",
        "podLabels.a=b",
        "nodeSelector.a=b",
        "tolerations[0].operator=Exists",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=[]",
    ],
];

/// The chart's objects under a release name that is not the chart's, so that the
/// installation which all tests use is left alone.
fn rendered(namespace: &str, values: &[&str]) -> Vec<Value> {
    let mut helm = Command::new("helm");
    helm.args(["template", "other", "charts/lockkeeper", "--include-crds"])
        .args(["--namespace", namespace, "--kube-version", &server_version()])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    for value in values {
        helm.args([if value.ends_with(']') { "--set-json" } else { "--set" }, value]);
    }
    let output = helm.output().expect("helm is on PATH: . target/test/env");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap())
        .filter(|document| !document.is_null())
        .collect();
    objects
}

fn server_version() -> String {
    let version: Value =
        serde_json::from_str(&kubectl(&["get", "--raw", "/version"], None).unwrap()).unwrap();
    version["gitVersion"].as_str().unwrap().to_owned()
}

/// Runs kubectl as administrator, with objects on its standard input.
fn kubectl(arguments: &[&str], objects: Option<&[Value]>) -> Result<String, String> {
    variable("KUBECONFIG");
    let mut child = Command::new("kubectl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl is on PATH: . target/test/env");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects.unwrap_or_default()});
    child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        // Warnings too: the API server warns of what it will refuse one day.
        Ok(text(&output.stdout) + &text(&output.stderr))
    } else {
        Err(text(&output.stderr))
    }
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

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("the chart has no {kind}"));
    assert!(found.next().is_none(), "the chart has two of {kind}");
    object
}

const DRY_RUN: [&str; 6] =
    ["apply", "--server-side", "--dry-run=server", "--field-manager=chart-test", "-f", "-"];

#[test]
fn every_object_of_the_chart_is_accepted_without_a_warning() {
    let namespace = Restricted::new();
    let mut watched: Vec<&str> = VALUES[1].to_vec();
    let watch = format!("watchNamespace={}", namespace.0);
    watched.push(&watch);
    for values in [VALUES[0], VALUES[1], &watched] {
        let objects = rendered(&namespace.0, values);
        assert_eq!(
            objects.len(),
            14,
            "2 definitions, account, 2 roles and bindings, deployment, 3 policies and bindings"
        );
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

#[test]
fn the_operator_has_exactly_the_rights_that_it_needs() {
    let texts = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten();
        all.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let expected: BTreeSet<(String, String, String)> = RIGHTS
        .iter()
        .map(|(group, resource, verb, _)| ((*group).into(), (*resource).into(), (*verb).into()))
        .collect();
    for values in VALUES {
        let objects = rendered("lockkeeper-system", values);
        let mut given = BTreeSet::new();
        for rule in of_kind(&objects, "ClusterRole")["rules"].as_array().unwrap() {
            let known = ["apiGroups", "resources", "verbs"];
            assert!(rule.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())));
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        given.insert((group.clone(), resource.clone(), verb));
                    }
                }
            }
        }
        assert_eq!(given, expected);
        let binding = of_kind(&objects, "ClusterRoleBinding");
        assert_eq!(binding["subjects"].as_array().unwrap().len(), 1);
        assert_eq!(
            binding["roleRef"]["name"],
            of_kind(&objects, "ClusterRole")["metadata"]["name"]
        );
    }
}

#[test]
fn an_operator_of_one_namespace_has_its_rights_there_only() {
    let objects = rendered("lockkeeper-system", &["watchNamespace=team-a"]);
    assert!(objects.iter().all(|object| object["kind"] != "ClusterRoleBinding"));
    let binding = of_kind(&objects, "RoleBinding");
    assert_eq!(binding["metadata"]["namespace"], "team-a");
    let account = of_kind(&objects, "ServiceAccount");
    assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
    assert_eq!(binding["subjects"][0]["namespace"], "lockkeeper-system");
}

#[test]
fn the_default_connections_come_from_a_secret_and_only_where_one_is_named() {
    let environment = |values: &[&str]| -> BTreeMap<String, Value> {
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
    let values: Vec<&str> = VALUES[1].iter().copied().chain(["watchNamespace=team-a"]).collect();
    let objects = rendered("lockkeeper-system", &values);
    let container = &of_kind(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        // Of those with credentials the help does not show the value.
        let known = ["=", "]"].iter().any(|end| help.contains(&format!("[env: {name}{end}")));
        // The log filter is read before the arguments are.
        assert!(known || name == "LOCKKEEPER_LOG", "{name}");
    }
    let arguments = container["args"].as_array().unwrap();
    assert_eq!(arguments[0], "operator");
    for argument in &arguments[1..] {
        assert!(help.contains(argument.as_str().unwrap()), "{argument}");
    }
}
