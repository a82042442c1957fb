//! Checks docs/hazards.md, docs/decisions.md, docs/high-availability.md and
//! docs/brokers.md against the tests: every name in them exists, every hazard has a test or an answer, and every
//! expectation has a test. Reads files only.

use std::collections::BTreeSet;
use std::path::Path;

fn read(document: &str) -> String {
    std::fs::read_to_string(format!("docs/{document}.md")).unwrap()
}

/// Returns the rows of the tables: id and state.
fn rows() -> Vec<(String, String)> {
    let text = read("hazards") + &read("decisions");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    text.lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes()[3].is_ascii_digit())
        .map(|line| match cells(line).as_slice() {
            [id, _, state] => (id.clone(), state.clone()),
            _ => panic!("a row has three cells: {line}"),
        })
        .collect()
}

/// Returns the names in backticks that look like a test's name, which is a sentence.
fn tests_named(state: &str) -> Vec<&str> {
    let quoted = state.split('`').skip(1).step_by(2);
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    quoted.filter(|name| name.matches('_').count() >= 3 && name.chars().all(is_word)).collect()
}

/// Collects the names of all functions in the sources and tests.
fn functions(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for (at, start) in text.match_indices("fn ") {
                let rest = &text[at + start.len()..];
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
                found.insert(rest[..end].to_owned());
            }
        }
    }
}

#[test]
fn every_test_that_the_hazards_name_exists() {
    let mut known = BTreeSet::new();
    for folder in ["src", "crates", "tests"] {
        functions(Path::new(folder), &mut known);
    }
    let rows = rows();
    let named: Vec<(&str, &str)> = rows
        .iter()
        .flat_map(|(id, state)| tests_named(state).into_iter().map(move |name| (id.as_str(), name)))
        .collect();
    let [clusters, brokers] = ["high-availability", "brokers"].map(read);
    let of_clusters = tests_named(&clusters);
    let of_brokers = tests_named(&brokers);
    assert!(named.len() > 20 && of_clusters.len() > 15, "{named:?} {of_clusters:?}");
    assert!(of_brokers.len() > 10, "{of_brokers:?}");
    let others = of_clusters.into_iter().chain(of_brokers).map(|name| ("", name));
    let named = named.into_iter().chain(others);
    let missing: Vec<_> = named.filter(|(_, name)| !known.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_file_that_the_hazards_name_exists() {
    let rows = rows();
    let named = rows.iter().flat_map(|(_, state)| state.split('`').skip(1).step_by(2));
    let is_rust = |name: &str| Path::new(name).extension().is_some_and(|end| end == "rs");
    let files: BTreeSet<&str> = named.filter(|name| is_rust(name)).collect();
    assert!(files.len() > 20, "{files:?}");
    let exists = |file: &&&str| ["src", "."].iter().any(|at| Path::new(at).join(file).exists());
    let missing: Vec<_> = files.iter().filter(|file| !exists(file)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Fails unless the rows with this letter are complete, and each names a test or has an
/// answer.
fn check_rows(letter: char, last: usize) {
    let rows = rows();
    let rows: Vec<_> = rows.iter().filter(|(id, _)| id.starts_with(letter)).collect();
    let ids: Vec<String> = rows.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids, (1..=last).map(|n| format!("{letter}{n}")).collect::<Vec<_>>());
    let open: Vec<_> = rows
        .iter()
        .filter(|(_, state)| tests_named(state).is_empty() && !state.contains("Answer: "))
        .map(|(id, _)| id)
        .collect();
    assert!(open.is_empty(), "neither a test nor an answer: {open:?}");
}

#[test]
fn every_hazard_of_a_semaphore_has_a_test_or_an_answer() {
    check_rows('A', 63);
}

#[test]
fn every_hazard_of_a_standard_stream_has_a_test_or_an_answer() {
    check_rows('S', 10);
}

#[test]
fn every_hazard_of_the_operator_has_a_test_or_an_answer() {
    check_rows('K', 37);
}

#[test]
fn every_expectation_has_a_test() {
    check_rows('E', 47);
    let rows = rows();
    let mut expected = rows.iter().filter(|(id, _)| id.starts_with('E'));
    assert!(expected.all(|(_, state)| !tests_named(state).is_empty()));
}

#[test]
fn every_hazard_of_a_pressure_queue_has_a_test_or_an_answer() {
    check_rows('P', 39);
}
