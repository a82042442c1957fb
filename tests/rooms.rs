//! What may lean on what: which room imports which, which crates each room may
//! name, what the lock client alone pulls in, and that every file says what it
//! is for. Reads the sources and cargo's own list of dependencies; no server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A room, the rooms that it may import, and the crates that are none of its
/// business.
const ROOMS: &[(&str, &[&str], &[&str])] = &[
    ("plan", &[], &["tokio", "tokio_util", "futures", "axum", "clap", "lapin", "redis", "reqwest"]),
    ("semaphore", &["plan"], &["redis", "axum", "clap"]),
    ("pressure", &["plan"], &["lapin", "reqwest", "axum", "clap"]),
    (
        "api",
        &["plan"],
        &["tokio", "tokio_util", "futures", "axum", "clap", "lapin", "redis", "reqwest"],
    ),
    ("operator", &["api", "plan", "semaphore", "pressure"], &["lapin", "redis", "reqwest", "clap"]),
    ("cli", &["operator", "api", "plan", "semaphore", "pressure"], &["lapin", "redis", "axum"]),
];

/// The crates that know Kubernetes; only these rooms may name them.
const KUBERNETES: [&str; 3] = ["kube", "k8s_openapi", "schemars"];
const MAY_NAME_KUBERNETES: [&str; 3] = ["api", "operator", "cli"];

/// A longer file has two subjects.
const MAX_LINES: usize = 420;
/// Longer all the same, and may grow so far: what each test's world has to offer.
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
fn what_decides_has_neither_clock_nor_async() {
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
fn every_file_says_first_what_it_is_for_and_has_one_subject() {
    let mut wrong = Vec::new();
    for file in ["src", "tests", "benches"].into_iter().flat_map(sources) {
        let path = file.path.display();
        if !file.text.starts_with("//! ") {
            wrong.push(format!("{path}: must open with //! and what lives there"));
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

/// Two TLS providers in one process panic, and OpenSSL would have to be installed
/// wherever the program runs.
#[test]
fn tls_is_done_with_ring_alone() {
    let all = dependencies(&["--all-features"]);
    assert!(all.contains("ring") && all.contains("rustls"), "{all:?}");
    let foreign = |name: &&String| {
        name.starts_with("aws-lc") || name.starts_with("openssl-sys") || *name == "native-tls"
    };
    let found: Vec<&String> = all.iter().filter(foreign).collect();
    assert!(found.is_empty(), "cargo tree -i tells who pulls in {found:?}");
    assert!(!all.contains("openssl"), "cargo tree -i openssl tells who pulls it in");
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
    /// The room that the file belongs to, if it is in one.
    fn room(&self) -> Option<String> {
        let mut parts = self.path.strip_prefix("src").ok()?.components();
        let first = parts.next()?.as_os_str().to_str()?.to_owned();
        if matches!(first.as_str(), "main.rs" | "lib.rs") {
            return None;
        }
        Some(first.trim_end_matches(".rs").to_owned())
    }

    /// The first segment of every path in the code: crates, and much else.
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

    /// The rooms whose names follow `crate::`, also in braces, and those reached
    /// upwards.
    fn rooms_imported(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (at, start) in self.code.match_indices("crate::") {
            found.extend(heads(&self.code[at + start.len()..]));
        }
        // From a room's mod.rs one step up is the crate, from its files two.
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

/// The names that a path goes on with: one, or those of a group in braces.
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

/// Every Rust file under a folder of this crate.
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

/// The names of all crates that are built with these features, this one aside.
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
fn the_reading_of_imports_finds_what_it_should() {
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
