//! The files that `dev/dist` and `dev/release` read exist and agree. See `dev/dist-check` for checks
//! of the result. No server.

use std::collections::BTreeSet;
use std::process::Command;

use lockkeeper_testkit::built;
use serde_json::Value;

/// Returns the text of a file of the checkout.
fn text(file: &str) -> String {
    std::fs::read_to_string(built::checkout().join(file)).unwrap()
}

/// Returns the workspace's packages, as cargo describes them.
fn packages() -> Vec<Value> {
    let described = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked", "--offline"])
        .current_dir(built::checkout())
        .output()
        .unwrap();
    let mut described: Value = serde_json::from_slice(&described.stdout).unwrap();
    serde_json::from_value(described["packages"].take()).unwrap()
}

fn package<'a>(packages: &'a [Value], name: &str) -> &'a Value {
    packages.iter().find(|package| package["name"] == name).unwrap()
}

/// Returns the workspace's packages that this one depends on, without those of its tests.
fn dependencies(package: &Value) -> BTreeSet<String> {
    let all = package["dependencies"].as_array().unwrap().iter();
    let normal =
        all.filter(|dependency| dependency["kind"].is_null() && dependency["path"].is_string());
    normal.map(|dependency| dependency["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_versions_of_program_crates_chart_and_changelog_agree() {
    let packages = packages();
    let version = package(&packages, "lockkeeper")["version"].as_str().unwrap();
    for package in &packages {
        assert_eq!(package["version"], version, "{}", package["name"]);
    }
    let chart: Value = serde_yaml::from_str(&text("charts/lockkeeper/Chart.yaml")).unwrap();
    assert_eq!(chart["version"], version);
    assert_eq!(chart["appVersion"], version);
    let changelog = text("CHANGELOG.md");
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    assert_eq!(newest.split(',').next(), Some(version));
}

#[test]
fn the_crates_of_the_library_are_published_after_those_they_depend_on() {
    let packages = packages();
    let release = text("dev/release");
    let list = release.split_once("crates=(").unwrap().1.split_once(')').unwrap().0;
    let mut before = BTreeSet::new();
    for name in list.split_whitespace().map(|name| format!("lockkeeper-{name}")) {
        let package = package(&packages, &name);
        assert!(package["publish"].is_null(), "{name} can't be published");
        let missing: Vec<_> = dependencies(package).difference(&before).cloned().collect();
        assert!(missing.is_empty(), "{name} depends on {missing:?}");
        before.insert(name);
    }
    assert!(before.contains("lockkeeper-client"));
    // All others are not for a registry.
    for package in packages.iter().filter(|it| !before.contains(it["name"].as_str().unwrap())) {
        assert_eq!(package["publish"], Value::Array(Vec::new()), "{}", package["name"]);
    }
}

#[test]
fn the_debian_package_has_each_file_that_is_made_for_it() {
    let packages = packages();
    let deb = &package(&packages, "lockkeeper")["metadata"]["deb"];
    let assets: Vec<Vec<String>> = serde_json::from_value(deb["assets"].clone()).unwrap();
    let shared = assets.iter().filter_map(|asset| asset[0].strip_prefix("target/dist/share/"));
    let shared: BTreeSet<&str> = shared.collect();
    let dist = text("dev/dist");
    let share = dist.split_once("share() {").unwrap().1.split_once("\n}").unwrap().0;
    for asset in &shared {
        let made = asset.strip_suffix("/*.1").unwrap_or(asset);
        assert!(share.contains(&format!("$share/{made}")), "dev/dist does not make {asset}");
    }
    // The manual, the plugin, and three shells.
    assert_eq!(shared.len(), 5);
    for shell in ["bash", "zsh", "fish"] {
        let script =
            Command::new(built::lockkeeper()).args(["completion", shell]).output().unwrap();
        assert!(script.status.success() && !script.stdout.is_empty(), "{shell}");
    }
}

#[test]
fn the_chart_has_the_lines_in_which_a_release_names_its_image() {
    let values = text("charts/lockkeeper/values.yaml");
    for line in ["  repository: lockkeeper", "  digest: \"\""] {
        assert_eq!(values.lines().filter(|it| *it == line).count(), 1, "{line:?}");
    }
    let installed = text("charts/install/install.yaml");
    assert!(installed.contains("image: \"lockkeeper:"), "dev/dist-check looks for this line");
}
