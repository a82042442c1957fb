//! The alerts: Prometheus' own tool accepts them, each fires when it should, and each
//! describes the next step. See the operator's tests for the metrics.

use std::collections::BTreeMap;
use std::process::Command;

use serde_yaml::Value;

fn file(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn rules() -> Value {
    serde_yaml::from_str(&file("charts/lockkeeper/files/rules.yaml")).unwrap()
}

fn alerts(rules: &mut Value) -> impl Iterator<Item = &mut Value> {
    let groups = rules["groups"].as_sequence_mut().unwrap().iter_mut();
    groups.flat_map(|group| group["rules"].as_sequence_mut().unwrap())
}

fn promtool(arguments: &[&str], file: &std::path::Path) {
    let output = Command::new("promtool")
        .args(arguments)
        .arg(file)
        .output()
        .expect("promtool is on the PATH: dev/promtool fetches it");
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
}

#[test]
fn every_alert_fires_when_it_should_and_not_before() {
    let place = std::env::temp_dir().join(format!("lockkeeper-rules-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let (tests, bare) = (place.join("rules.test.yaml"), place.join("rules.yaml"));
    std::fs::copy("tests/observability/rules.test.yaml", &tests).unwrap();
    // promtool requires each text to be repeated in the tests literally.
    let mut rules = rules();
    for alert in alerts(&mut rules) {
        alert.as_mapping_mut().unwrap().remove("annotations");
    }
    std::fs::write(&bare, serde_yaml::to_string(&rules).unwrap()).unwrap();
    let outcome = std::panic::catch_unwind(|| promtool(&["test", "rules"], &tests));
    std::fs::remove_dir_all(&place).unwrap();
    outcome.unwrap();
}

#[test]
fn every_alert_has_a_test_a_summary_a_description_and_a_runbook() {
    promtool(&["check", "rules"], std::path::Path::new("charts/lockkeeper/files/rules.yaml"));
    let (tests, docs) =
        (file("tests/observability/rules.test.yaml"), file("docs/observability.md"));
    let mut rules = rules();
    let mut count = 0;
    for alert in alerts(&mut rules) {
        let name = alert["alert"].as_str().unwrap();
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} is never seen to fire");
        let says = |what: &str| alert["annotations"][what].as_str().unwrap_or_default();
        for what in ["summary", "description"] {
            assert!(says(what).len() > 20, "{name} has no {what}");
        }
        let anchor = format!("docs/observability.md#{}", name.to_lowercase());
        assert_eq!(says("runbook_url"), anchor);
        assert!(docs.contains(&format!("\n### {name}\n")), "docs/observability.md has no {name}");
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["info", "warning", "critical"].contains(&severity), "{name}: {severity}");
        count += 1;
    }
    assert!(count >= 8, "{count} alerts");
}

#[test]
fn the_dashboard_is_chosen_by_data_source_namespace_and_name() {
    let dashboard: Value =
        serde_json::from_str(&file("charts/lockkeeper/files/dashboard.json")).unwrap();
    let variables = dashboard["templating"]["list"].as_sequence().unwrap();
    let variables: Vec<_> = variables.iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "namespace", "name"]);
    let mut ids = std::collections::BTreeSet::new();
    let mut queries = 0;
    for panel in dashboard["panels"].as_sequence().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "an id twice: {panel:?}");
        for target in panel["targets"].as_sequence().into_iter().flatten() {
            assert_eq!(panel["datasource"]["uid"], "${datasource}");
            assert!(!target["expr"].as_str().unwrap().is_empty());
            queries += 1;
        }
    }
    assert!(queries > 30, "{queries} queries");
}

/// Returns the help texts of a scrape, without the period that the format adds.
pub fn helps(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    lines.map(|(name, help)| (name.to_owned(), help.trim_end_matches('.').to_owned())).collect()
}

/// Returns the column "meaning" of each metric, by its name in the help texts.
pub fn meanings(docs: &str) -> BTreeMap<String, String> {
    let mut meanings = BTreeMap::new();
    for row in docs.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [names, _type, _labels, meaning] = cells[..] else { continue };
        let name = names.trim_end_matches('●').trim().trim_matches('`');
        let name = name.strip_suffix("_total").unwrap_or(name);
        if name.contains('`') || meaning.starts_with("as in ") {
            continue;
        }
        meanings.insert(name.to_owned(), meaning.replace('`', ""));
    }
    assert!(meanings.len() > 30, "{meanings:?}");
    meanings
}
