//! The chart's values: each is described, has its rule in the schema, is tested, and is
//! rejected if it is invalid.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::chart::{FULL, WITHOUT, given, rendered_as};

fn chart_file(name: &str) -> String {
    let file = format!("{}/charts/lockkeeper/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(file).unwrap()
}

fn schema() -> Value {
    serde_json::from_str(&chart_file("values.schema.json")).unwrap()
}

/// Returns the values of a text by their paths. An object that the schema leaves open is
/// one value.
fn leaves(text: &str) -> BTreeMap<String, Value> {
    fn walk(path: &str, value: &Value, rule: &Value, found: &mut BTreeMap<String, Value>) {
        match (value, rule["properties"].as_object()) {
            (Value::Object(inside), Some(rules)) => {
                for (name, value) in inside {
                    let rule = rules.get(name).unwrap_or(&Value::Null);
                    let path = format!("{path}.{name}").trim_start_matches('.').to_owned();
                    walk(&path, value, rule, found);
                }
            }
            _ => _ = found.insert(path.to_owned(), value.clone()),
        }
    }
    let mut found = BTreeMap::new();
    walk("", &serde_yaml::from_str(text).unwrap(), &schema(), &mut found);
    found
}

/// Returns the rows of a Markdown list of values: path and description.
fn rows(readme: &str) -> BTreeMap<String, String> {
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (name, rest) = row.split_once("` | ").unwrap();
        let (_, description) = rest.split_once(" | ").unwrap();
        (name.to_owned(), description.trim_end_matches(" |").to_owned())
    })
    .collect()
}

#[test]
fn every_value_has_its_description_in_the_readme_and_its_rule_in_the_schema() {
    let committed = chart_file("README.md");
    let script = format!("{}/dev/chart-readme", env!("CARGO_MANIFEST_DIR"));
    let now = given(&mut Command::new(script), "").unwrap();
    assert_eq!(committed, now, "the chart's README is stale: run `make generate`");

    let rows = rows(&committed);
    let schema = schema();
    let values = leaves(&chart_file("values.yaml"));
    assert!(values.len() > 60, "{}", values.len());
    for path in values.keys() {
        let pointer = format!("/properties/{}", path.replace('.', "/properties/"));
        let rule = schema.pointer(&pointer);
        assert!(rule.is_some_and(|rule| rule != &Value::Bool(true)), "{path} is in no schema");
        let description = rows.get(path).unwrap_or_else(|| panic!("{path} is not in the README"));
        assert!(description.len() > 8, "{path} is not described: {description}");
    }
    // The README's additional rows are groups.
    let group = |row: &String| values.keys().any(|path| path.starts_with(&format!("{row}.")));
    let unknown: Vec<&String> =
        rows.keys().filter(|row| !values.contains_key(*row) && !group(row)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_schema_knows_no_value_that_does_not_exist_and_takes_no_other() {
    fn objects(path: &str, rule: &Value, found: &mut Vec<(String, Value)>) {
        for (name, inside) in rule["properties"].as_object().into_iter().flatten() {
            objects(&format!("{path}.{name}"), inside, found);
        }
        found.push((path.to_owned(), rule.clone()));
    }
    let values = leaves(&chart_file("values.yaml"));
    let mut all = Vec::new();
    objects("", &schema(), &mut all);
    for (path, rule) in &all {
        let path = path.trim_start_matches('.');
        if rule["properties"].is_object() {
            // Parent charts put their values into global.
            let closed = rule["additionalProperties"] == Value::Bool(false);
            assert!(closed || path == "global", "{path} takes anything");
        } else {
            assert!(values.contains_key(path), "{path} is no value");
        }
    }
}

#[test]
fn every_value_is_tried_at_something_else_than_its_default() {
    let defaults = leaves(&chart_file("values.yaml"));
    let tried = [FULL, WITHOUT].map(leaves);
    let untried: BTreeSet<&String> = defaults
        .iter()
        .filter(|(path, default)| {
            !tried.iter().any(|values| values.get(*path).is_some_and(|value| value != *default))
        })
        .map(|(path, _)| path)
        .collect();
    assert!(untried.is_empty(), "set them in tests/chart/full.yaml or without.yaml: {untried:?}");
}

/// Values that helm must reject, and a part of the error message.
const REFUSED: &[(&str, &str)] = &[
    ("watchNamespace: team-a", "watchNamespace"),
    ("watchNamespaces: team-a", "watchNamespaces"),
    ("watchNamespaces: [Team]", "watchNamespaces"),
    ("watchNamespaces: [a, a]", "watchNamespaces"),
    ("image: {digest: sha256:12}", "digest"),
    ("image: {pullPolicy: Sometimes}", "pullPolicy"),
    ("image: {registry: example}", "registry"),
    ("observeInterval: 10", "observeInterval"),
    ("driftInterval: soon", "driftInterval"),
    ("log: {format: xml}", "format"),
    ("http: {port: 0}", "port"),
    ("metrics: {serviceMonitor: {renderMode: maybe}}", "renderMode"),
    ("rbac: {secretNames: rabbitmq}", "secretNames"),
    ("networkPolicy: {apiServerPorts: []}", "apiServerPorts"),
    ("crds: {installed: true}", "installed"),
    ("commonLabels: {app.kubernetes.io/name: other}", "app.kubernetes.io/name"),
    ("podLabels: {helm.sh/chart: other}", "helm.sh/chart"),
    ("limitsPerNamespace: {slots: 4294967296}", "slots"),
    ("policies: {enabled: \"yes\"}", "enabled"),
    ("global: {compatibility: {openshift: {adaptSecurityContext: never}}}", "adaptSecurityContext"),
    ("podDisruptionBudget: {enabled: true}", "replicas of at least 2"),
    ("{replicas: 2, leaderElection: {enabled: false}}", "replicas above 1"),
    ("metrics: {serviceMonitor: {enabled: true, renderMode: failIfMissing}}", "ServiceMonitor"),
    ("rules: {enabled: true, renderMode: failIfMissing}", "PrometheusRule"),
];

#[test]
fn values_that_make_no_sense_are_refused_with_their_name() {
    for (values, says) in REFUSED {
        match rendered_as("other", "lockkeeper-system", values, &[]) {
            Ok(_) => panic!("{values} is taken"),
            Err(error) => assert!(error.contains(says), "{values}: {error}"),
        }
    }
}
