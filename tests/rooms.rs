//! The layers of the sources: which module imports which, which crates each may use, and
//! the dependencies of the lock client alone. Also checks that every file has a header.
//! Reads the sources and cargo's own list of dependencies; no server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A module, the modules that it may import, and the crates that it must not use.
const ROOMS: &[(&str, &[&str], &[&str])] = &[
    ("plan", &[], &["tokio", "tokio_util", "futures", "axum", "clap", "lapin", "redis", "reqwest"]),
    ("tls", &["plan"], &["tokio", "axum", "clap", "lapin", "redis", "reqwest"]),
    ("clock", &[], &["axum", "clap", "lapin", "redis", "reqwest"]),
    ("opening", &[], &["axum", "clap", "lapin", "redis", "reqwest"]),
    ("process_limit", &[], &["tokio", "axum", "clap", "lapin", "redis", "reqwest"]),
    (
        "semaphore",
        &["clock", "opening", "plan", "process_limit", "tls"],
        &["redis", "axum", "clap"],
    ),
    (
        "pressure",
        &["opening", "plan", "process_limit", "tls"],
        &["lapin", "reqwest", "axum", "clap"],
    ),
    (
        "api",
        &["plan"],
        &["tokio", "tokio_util", "futures", "axum", "clap", "lapin", "redis", "reqwest"],
    ),
    (
        "operator",
        &["api", "clock", "opening", "plan", "semaphore", "pressure"],
        &["lapin", "redis", "reqwest", "clap"],
    ),
    (
        "cli",
        &["operator", "api", "clock", "plan", "process_limit", "semaphore", "pressure"],
        &["lapin", "redis", "axum"],
    ),
];

/// The crates for Kubernetes, and the only modules that may use them.
const KUBERNETES: [&str; 3] = ["kube", "k8s_openapi", "schemars"];
const MAY_NAME_KUBERNETES: [&str; 3] = ["api", "operator", "cli"];

/// Maximum length of a file. A longer file has two subjects.
const MAX_LINES: usize = 420;
/// Exceptions with their own maximum: the shared environment of tests.
const LONGER: [(&str, usize); 1] = [("tests/support/world.rs", 500)];

#[test]
fn a_room_imports_only_the_rooms_below_it() {
    let known: BTreeSet<&str> = ROOMS.iter().map(|(room, ..)| *room).collect();
    let rooms = sources("src");
    let found: BTreeSet<String> = rooms.iter().filter_map(Source::room).collect();
    assert_eq!(found, known.iter().map(ToString::to_string).collect(), "a room without a rule");
    let mut wrong = Vec::new();
    for file in &rooms {
        let Some(room) = file.room() else { continue };
        let (_, below, _) = ROOMS.iter().find(|(name, ..)| *name == room).unwrap();
        for imported in file.rooms_imported() {
            if imported != room && !below.contains(&imported.as_str()) {
                wrong.push(format!("{}: {room} must not import {imported}", file.path.display()));
            }
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
fn a_room_names_no_crate_that_is_none_of_its_business() {
    let mut wrong = Vec::new();
    for file in sources("src") {
        let Some(room) = file.room() else { continue };
        let (_, _, foreign) = ROOMS.iter().find(|(name, ..)| *name == room).unwrap();
        let crates = file.first_segments();
        let mut forbidden: Vec<&str> = foreign.to_vec();
        if !MAY_NAME_KUBERNETES.contains(&room.as_str()) {
            forbidden.extend(KUBERNETES);
        }
        for name in forbidden.into_iter().filter(|name| crates.contains(*name)) {
            wrong.push(format!("{}: {room} must not use {name}", file.path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_decisions_have_neither_clock_nor_async() {
    let mut wrong = Vec::new();
    for file in sources("src") {
        if file.room().as_deref() != Some("plan") {
            continue;
        }
        for forbidden in ["async ", ".await", "Instant::now", "SystemTime", "Timestamp::now"] {
            if file.code.contains(forbidden) {
                wrong.push(format!("{}: {forbidden}", file.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_starts_with_its_purpose_and_has_one_subject() {
    let mut wrong = Vec::new();
    for file in ["src", "tests", "benches", "prove"].into_iter().flat_map(sources) {
        let path = file.path.display();
        if !file.text.starts_with("//! ") {
            wrong.push(format!("{path}: must start with //! and its purpose"));
        }
        let lines = file.text.lines().count();
        let exception = LONGER.iter().find(|(longer, _)| file.path.as_path() == Path::new(longer));
        let most = exception.map_or(MAX_LINES, |(_, most)| *most);
        if lines > most {
            wrong.push(format!("{path}: {lines} lines, more than {most}: two subjects?"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Two TLS providers in one process cause a panic, and OpenSSL would have to be installed
/// on every machine that runs the program.
#[test]
fn tls_is_done_with_ring_alone() {
    let all = dependencies(&["--all-features"]);
    assert!(all.contains("ring") && all.contains("rustls"), "{all:?}");
    let foreign = |name: &&String| {
        name.starts_with("aws-lc") || name.starts_with("openssl-sys") || *name == "native-tls"
    };
    let found: Vec<&String> = all.iter().filter(foreign).collect();
    assert!(found.is_empty(), "cargo tree -i shows which crate requires {found:?}");
    assert!(!all.contains("openssl"), "cargo tree -i openssl shows which crate requires it");
}

#[test]
fn the_lock_client_alone_pulls_in_nothing_of_kubernetes_or_the_command_line() {
    let all = dependencies(&["--all-features"]);
    let client = dependencies(&["--no-default-features", "--features", "client"]);
    assert!(client.contains("lapin") && client.contains("redis"), "{client:?}");
    for name in ["kube", "kube-client", "k8s-openapi", "schemars", "axum", "clap"] {
        assert!(all.contains(name), "{name} is not used at all any more");
        assert!(!client.contains(name), "the feature client pulls in {name}");
    }
}

/// A source file without its comments.
struct Source {
    path: PathBuf,
    text: String,
    code: String,
}

impl Source {
    /// Returns the module that the file belongs to, if any.
    fn room(&self) -> Option<String> {
        let mut parts = self.path.strip_prefix("src").ok()?.components();
        let first = parts.next()?.as_os_str().to_str()?.to_owned();
        if matches!(first.as_str(), "main.rs" | "lib.rs") {
            return None;
        }
        Some(first.trim_end_matches(".rs").to_owned())
    }

    /// Returns the first segment of every path in the code: crates, among others.
    fn first_segments(&self) -> BTreeSet<String> {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let mut found = BTreeSet::new();
        for (at, _) in self.code.match_indices("::") {
            let before = &self.code[..at];
            let name_at = before.rfind(|c| !word(c)).map_or(0, |i| i + 1);
            if !before[..name_at].ends_with("::") && name_at < at {
                found.insert(before[name_at..].to_owned());
            }
        }
        // `use kube;` and `use redis as store;` have no second segment.
        for line in self.code.lines() {
            if let Some(rest) = line.trim_start().strip_prefix("use ") {
                found.insert(rest.chars().take_while(|&c| word(c)).collect());
            }
        }
        found
    }

    /// Whether the code, except its tests, uses the type of a kind or its module in the
    /// operator.
    fn names_kind(&self, folder: &str, kind: &str) -> bool {
        let code = self.code.split("#[cfg(test)]").next().unwrap();
        let after = |path: &str| -> Vec<String> {
            let found = code.match_indices(path);
            found.flat_map(|(at, start)| heads(&code[at + start.len()..])).collect()
        };
        after("crate::api::").iter().any(|name| name.starts_with(kind) || name == folder)
            || after("super::").iter().any(|name| name == folder)
            || after("crate::operator::").iter().any(|name| name == folder)
    }

    /// Returns the modules whose names follow `crate::`, also in braces, and those
    /// reached through `super`.
    fn rooms_imported(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (at, start) in self.code.match_indices("crate::") {
            found.extend(heads(&self.code[at + start.len()..]));
        }
        // From a module's mod.rs the crate is one step up, from its other files two.
        let up = if self.path.ends_with("mod.rs") { "super::" } else { "super::super::" };
        for (at, start) in self.code.match_indices(up) {
            let rest = &self.code[at + start.len()..];
            found.extend(heads(rest).into_iter().filter(|head| is_room(head)));
        }
        found.retain(|name| is_room(name));
        found
    }
}

fn is_room(name: &str) -> bool {
    ROOMS.iter().any(|(room, ..)| *room == name)
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
    assert!(folder == "benches" || found.len() > 5, "{folder} has {} files", found.len());
    found
}

/// Returns the names of all crates that are built with these features, except this one.
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
fn the_imports_of_a_file_are_recognized() {
    let source = |path: &str, code: &str| Source {
        path: path.into(),
        text: code.to_owned(),
        code: code.to_owned(),
    };
    let rooms = |path, code| {
        let found = source(path, code).rooms_imported();
        found.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(rooms("src/plan/x.rs", "use crate::api::Semaphore;"), "api");
    assert_eq!(rooms("src/plan/x.rs", "use crate::{api::{plan, x}, cli};"), "api cli");
    assert_eq!(rooms("src/plan/mod.rs", "use super::pressure;"), "pressure");
    assert_eq!(rooms("src/operator/x.rs", "use super::semaphore;"), "", "its own file");
    assert_eq!(rooms("src/operator/x.rs", "use super::super::cli;"), "cli");
    let names = |code| source("src/operator/x.rs", code).names_kind("semaphore", "Semaphore");
    assert!(names("use crate::api::{FIELD, Semaphore};") && names("use super::semaphore::State;"));
    assert!(names("use crate::api::SemaphoreStatus;") && names("use super::{owners, semaphore};"));
    assert!(!names("use crate::semaphore::Broker;\n#[cfg(test)]\nuse crate::api::Semaphore;"));
    let crates =
        source("src/plan/x.rs", "use kube;\nlet a: b::redis::C = tokio::d(\"redis://e\");");
    let found: BTreeMap<&str, bool> = ["kube", "redis", "tokio", "b"]
        .map(|name| (name, crates.first_segments().contains(name)))
        .into();
    assert_eq!(
        found,
        [("kube", true), ("redis", false), ("tokio", true), ("b", true)].into(),
        "{:?}",
        crates.first_segments()
    );
}
