//! What Cargo does not check: which crates each crate may reach, and the layers of the
//! program. Also checks that every file has a header and one subject. See `imports` for the
//! layers inside a crate. Reads the sources and cargo's own list of dependencies; no server.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate, our crates that it reaches, and foreign ones that it must not reach.
const CRATES: &[(&str, &[&str], &[&str])] = &[
    ("plan", &[], &["tokio", "futures", "lapin", "redis", "kube", "schemars"]),
    ("net", &[], &["lapin", "redis", "reqwest", "kube", "schemars"]),
    ("api", &["plan"], &["lapin", "redis", "reqwest", "axum", "clap"]),
    ("amqp", &["net"], &["redis", "reqwest", "kube", "schemars", "axum", "clap"]),
    (
        "semaphore",
        &["amqp", "net", "plan"],
        &["redis", "kube", "k8s-openapi", "schemars", "axum", "clap"],
    ),
    ("pressure", &["net", "plan"], &["lapin", "reqwest", "kube", "schemars", "axum", "clap"]),
    (
        "client",
        &["amqp", "net", "plan", "pressure", "semaphore"],
        &["kube", "kube-client", "k8s-openapi", "schemars", "axum", "clap"],
    ),
    (
        "bench",
        &["amqp", "api", "net", "plan", "pressure", "prove", "semaphore", "testkit"],
        &["indicatif", "prometheus-client"],
    ),
    (
        "testkit",
        &["amqp", "api", "net", "plan", "pressure", "prove", "semaphore"],
        &["indicatif", "prometheus-client"],
    ),
    ("prove", &["plan"], &["redis", "reqwest", "kube", "axum"]),
];

/// Maximum length of a file. A longer file has two subjects.
const MAX_LINES: usize = 400;

#[test]
fn a_crate_reaches_only_the_crates_below_it() {
    let all = dependencies(&["--package", "lockkeeper", "--all-features"]);
    let ours = |found: &BTreeSet<String>| -> BTreeSet<String> {
        let ours = found.iter().filter_map(|name| name.strip_prefix("lockkeeper-"));
        ours.map(ToOwned::to_owned).collect()
    };
    for development in ["bench", "prove", "testkit"] {
        assert!(!ours(&all).contains(development), "the program must not reach {development}");
    }
    for (name, below, foreign) in CRATES {
        let found = dependencies(&["--package", &format!("lockkeeper-{name}"), "--all-features"]);
        let expected = below.iter().chain([name]).map(ToString::to_string).collect();
        assert_eq!(ours(&found), expected, "the crates of ours that {name} reaches");
        for other in *foreign {
            assert!(!found.contains(*other), "{name} must not reach {other}");
            assert!(all.contains(*other), "{other} is not used at all any more");
        }
    }
    let known: BTreeSet<String> = CRATES.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let folders = std::fs::read_dir("crates").unwrap();
    let folders = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(folders.collect::<BTreeSet<_>>(), known, "a crate without a rule");
}

#[test]
fn the_operator_knows_nothing_of_the_command_line() {
    let mut wrong = Vec::new();
    for file in sources("src/operator") {
        if ["crate::cli::", "super::cli::", "clap::"].iter().any(|path| file.code.contains(path)) {
            wrong.push(file.path.display().to_string());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The kinds: the file and folder in `src/operator` of each, and its type.
const KINDS: [(&str, &str); 2] = [("semaphore", "Semaphore"), ("pressure_queue", "PressureQueue")];

#[test]
fn only_the_folder_of_a_kind_names_it_in_the_operator() {
    let mut wrong = Vec::new();
    for file in sources("src") {
        let Ok(inside) = file.path.strip_prefix("src/operator") else { continue };
        let own = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        // It registers the kinds.
        if own == "mod" {
            continue;
        }
        for (folder, kind) in KINDS.into_iter().filter(|(folder, _)| *folder != own) {
            if file.names_kind(folder, kind) {
                wrong.push(format!("{} names {kind}", file.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_starts_with_its_purpose_and_has_one_subject() {
    let mut wrong = Vec::new();
    for file in ["src", "crates", "tests"].into_iter().flat_map(sources) {
        let path = file.path.display();
        if !file.text.starts_with("//! ") {
            wrong.push(format!("{path}: must start with //! and its purpose"));
        }
        let lines = file.text.lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{path}: {lines} lines, more than {MAX_LINES}: two subjects?"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Two TLS providers in one process cause a panic, and OpenSSL would have to be installed
/// on every machine that runs the program.
#[test]
fn tls_is_done_with_ring_alone() {
    let all = dependencies(&["--workspace", "--all-features"]);
    assert!(all.contains("ring") && all.contains("rustls"), "{all:?}");
    let foreign = |name: &&String| {
        name.starts_with("aws-lc") || name.starts_with("openssl-sys") || *name == "native-tls"
    };
    let found: Vec<&String> = all.iter().filter(foreign).collect();
    assert!(found.is_empty(), "cargo tree -i shows which crate requires {found:?}");
    assert!(!all.contains("openssl"), "cargo tree -i openssl shows which crate requires it");
}

/// `env::var` makes a value that is not UTF-8 look like one that is not set, which would lead
/// to another server. See `variable_text` in the crate `plan`.
#[test]
fn no_variable_of_the_environment_is_unset_because_it_is_not_text() {
    let mut wrong = Vec::new();
    for file in ["src", "crates"].into_iter().flat_map(sources) {
        let is_tool =
            ["crates/bench", "crates/testkit"].iter().any(|tool| file.path.starts_with(tool));
        let is_test = is_tool || file.path.ends_with("tests.rs");
        let code = file.code.split("#[cfg(test)]").next().unwrap();
        if !is_test && ["env::var(", "env::vars("].iter().any(|read| code.contains(read)) {
            wrong.push(file.path.display().to_string());
        }
    }
    assert!(wrong.is_empty(), "use std::env::var_os and variable_text: {}", wrong.join(", "));
}

/// Kubernetes sets such variables in each pod, by the names of the Services in its namespace.
#[test]
fn no_variable_but_one_has_a_name_that_service_links_can_have() {
    let is_link = |name: &str| {
        let is_name =
            name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        let of_links = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"];
        is_name && (name.ends_with("_PORT") || of_links.iter().any(|part| name.contains(part)))
    };
    let mut found = BTreeSet::new();
    for file in ["src", "crates/plan/src", "crates/pressure/src"].into_iter().flat_map(sources) {
        let code = file.code.split("#[cfg(test)]").next().unwrap();
        if !file.path.ends_with("tests.rs") {
            let links = code.split('"').filter(|text| is_link(text));
            found.extend(links.map(ToOwned::to_owned));
        }
    }
    // Its value is recognized: `service_links_of_kubernetes_have_no_effect`.
    assert_eq!(found, BTreeSet::from(["REDIS_PORT".to_owned()]));
}

/// A source file without its comments.
struct Source {
    path: PathBuf,
    text: String,
    code: String,
}

impl Source {
    /// Whether the code, except its tests, uses the type of a kind or its module in the
    /// operator.
    fn names_kind(&self, folder: &str, kind: &str) -> bool {
        let code = self.code.split("#[cfg(test)]").next().unwrap();
        let after = |path: &str| -> Vec<String> {
            let found = code.match_indices(path);
            found.flat_map(|(at, start)| heads(&code[at + start.len()..])).collect()
        };
        after("lockkeeper_api::").iter().any(|name| name.starts_with(kind) || name == folder)
            || after("super::").iter().any(|name| name == folder)
            || after("crate::operator::").iter().any(|name| name == folder)
    }
}

/// Returns the names that continue a path: one, or those of a group in braces.
fn heads(rest: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let mut depth = 0;
    let mut names = vec![word(group)];
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(word(&group[at + 1..])),
            _ => {}
        }
    }
    names
}

/// Returns every Rust file below a directory of this crate.
fn sources(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let is_comment = |line: &&str| !line.trim_start().starts_with("//");
                let code = text.lines().filter(is_comment).collect::<Vec<_>>().join("\n");
                let path = path.strip_prefix(root).unwrap().to_owned();
                found.push(Source { path, text, code });
            }
        }
    }
    assert!(found.len() > 5, "{folder} has {} files", found.len());
    found
}

/// Returns the names of all crates that are built for these packages and features.
fn dependencies(features: &[&str]) -> BTreeSet<String> {
    let output = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .args(["tree", "--locked", "--prefix", "none", "--edges", "normal,build"])
        .args(features)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).map(ToOwned::to_owned).collect()
}

#[test]
fn a_kind_is_recognized_in_the_imports_of_a_file() {
    let names = |code: &str| {
        let path = PathBuf::from("src/operator/x.rs");
        let source = Source { path, text: code.to_owned(), code: code.to_owned() };
        source.names_kind("semaphore", "Semaphore")
    };
    assert!(names("use lockkeeper_api::{FIELD, Semaphore};"));
    assert!(names("use super::semaphore::State;"));
    assert!(names("use lockkeeper_api::SemaphoreStatus;"));
    assert!(names("use super::{owners, semaphore};"));
    let test = "use lockkeeper_semaphore::Broker;\n#[cfg(test)]\nuse lockkeeper_api::Semaphore;";
    assert!(!names(test));
}
