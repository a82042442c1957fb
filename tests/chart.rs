//! The chart: a real API server accepts its rendered objects, the operator gets exactly
//! the permissions that it needs, and its pod runs at the Pod Security level
//! "restricted".

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::{random, variable};
use serde::Deserialize;
use serde_json::{Value, json};

mod files;
mod installing;
mod policies;
mod readme;
mod rendering;
mod teams;
mod values;

/// Every permission of the operator (group, resource, verb), and its purpose.
const RIGHTS: &[(&str, &str, &str, &str)] = &[
    ("lockkeeper.dev", "semaphores", "list", "to read the desired state"),
    ("lockkeeper.dev", "semaphores", "watch", "to follow the desired state"),
    ("lockkeeper.dev", "semaphores", "patch", "its finalizer"),
    ("lockkeeper.dev", "semaphores/status", "patch", "to report, by server-side apply"),
    ("lockkeeper.dev", "pressurequeues", "list", "to read the desired state"),
    ("lockkeeper.dev", "pressurequeues", "watch", "to follow the desired state"),
    ("lockkeeper.dev", "pressurequeues", "patch", "its finalizer"),
    ("lockkeeper.dev", "pressurequeues/status", "patch", "to report, by server-side apply"),
    ("", "secrets", "get", "the connection that an object names; no Secret is ever listed"),
    ("rabbitmq.com", "rabbitmqclusters", "get", "the broker that a Semaphore names"),
    ("", "namespaces", "get", "whether it is being deleted, where a Secret went first"),
    ("events.k8s.io", "events", "create", "to record what happened"),
    ("events.k8s.io", "events", "patch", "to count what happens again"),
];

/// Values that the chart is tested with: none, and as many as can be combined.
const VALUES: [&str; 2] = ["", FULL];
const FULL: &str = include_str!("chart/full.yaml");
/// The values that leave out optional parts.
const WITHOUT: &str = include_str!("chart/without.yaml");

/// Renders the chart's objects with a release name other than the chart's, so that the
/// installation shared by all tests stays unchanged.
fn rendered(namespace: &str, values: &str) -> Vec<Value> {
    rendered_as("other", namespace, values, &[]).unwrap()
}

/// Renders with another release name and more arguments, or returns helm's error. Values
/// are YAML.
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

/// Parses a text with several objects.
fn documents(text: &str) -> Vec<Value> {
    serde_yaml::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).unwrap())
        .filter(|document| !document.is_null())
        .collect()
}

/// Runs a command with this standard input. Returns its output, or its errors if it
/// failed.
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
        // Including warnings, because the API server warns of future rejections.
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

/// A namespace that only accepts pods of the level "restricted". Deleted when dropped.
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

/// Returns the only object of a kind.
fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("the chart has no {kind}"));
    assert!(found.next().is_none(), "the chart has two of {kind}");
    object
}

const DRY_RUN: [&str; 6] =
    ["apply", "--server-side", "--dry-run=server", "--field-manager=chart-test", "-f", "-"];

/// Returns whether the definition belongs to the Prometheus operator, and so may be
/// missing.
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
        // Validated by the API server itself, not by a list of fields.
        kubectl(&DRY_RUN, Some(&[pod.clone()])).unwrap();

        let container = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(
            container["readOnlyRootFilesystem"], true,
            "beyond the level: nothing is written"
        );
        // The validation is effective: with one setting less, the pod is rejected.
        pod["spec"]["containers"][0]["securityContext"]["capabilities"] = Value::Null;
        let refused = kubectl(&DRY_RUN, Some(&[pod])).unwrap_err();
        assert!(refused.contains("violates PodSecurity"), "{refused}");
    }
}

/// Returns the permissions of a role, and the names that they are limited to.
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

/// Returns the role that a binding grants.
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
    // The remaining cluster roles are for users, and the chart binds none of them.
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
fn the_default_connections_are_a_mounted_secret_and_only_where_one_is_named() {
    let pod = |values: &str| {
        let objects = rendered("lockkeeper-system", values);
        of_kind(&objects, "Deployment")["spec"]["template"]["spec"].clone()
    };
    let without = pod(VALUES[0]);
    assert!(!without.to_string().contains("LOCKKEEPER_CONNECTIONS_DIR"), "{without}");
    assert!(without["volumes"].is_null());

    let with = pod(VALUES[1]);
    let named = |list: &Value, name: &str| {
        let found = list.as_array().unwrap().iter().find(|entry| entry["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {list}")).clone()
    };
    let secret = &named(&with["volumes"], "connections")["secret"];
    assert_eq!(secret["secretName"], "connections");
    assert_eq!(secret["optional"], true, "it may be created after the pod");
    let container = &with["containers"][0];
    let mount = named(&container["volumeMounts"], "connections");
    let directory = named(&container["env"], "LOCKKEEPER_CONNECTIONS_DIR");
    assert_eq!(directory["value"], mount["mountPath"]);
    let variables = container["env"].as_array().unwrap().iter();
    let from_secrets = variables.filter(|variable| !variable["valueFrom"].is_null());
    assert_eq!(from_secrets.count(), 0, "no credential in the environment");
}

/// The chart configures the operator by environment and arguments. The program must
/// support each of them.
#[test]
fn the_program_knows_every_setting_that_the_chart_makes() {
    let help = Command::new(built::lockkeeper())
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
        // For variables with credentials, the help does not show the value.
        let known = ["=", "]"].iter().any(|end| help.contains(&format!("[env: {name}{end}")))
            || name.contains("_TLS_") && help.contains(name);
        // The log filter is read before the arguments.
        assert!(known || ["LOCKKEEPER_LOG", "TZ"].contains(&name), "{name}");
    }
    assert_eq!(arguments[0], "operator");
    for argument in arguments {
        let name = argument.as_str().unwrap().split('=').next().unwrap();
        assert!(help.contains(name), "{argument}");
    }
}
