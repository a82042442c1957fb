//! The documents: the length of the README, every relative link and anchor, and every file and
//! folder that they name. See `hazards` for the tests that documents name. Reads files only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Maximum length of the README. It is a front page; the manual is in `docs`.
const README_LINES: usize = 150;

#[test]
fn the_readme_is_a_front_page() {
    let lines = std::fs::read_to_string("README.md").unwrap().lines().count();
    assert!(lines <= README_LINES, "{lines} lines: move a section to docs");
}

#[test]
fn every_link_and_anchor_of_a_document_resolves() {
    let prose = |(path, text): (PathBuf, String)| (path, without_blocks(&text));
    let documents: BTreeMap<_, _> = documents().into_iter().map(prose).collect();
    let mut links = 0;
    let mut wrong = Vec::new();
    for (document, text) in &documents {
        for link in targets(text) {
            links += 1;
            if let Err(why) = resolve(document, &link, &documents) {
                wrong.push(format!("{}: {link}: {why}", document.display()));
            }
        }
    }
    assert!(documents.len() > 30 && links > 300, "{} documents, {links} links", documents.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Commands are run from the root of the repository.
#[test]
fn every_file_and_package_that_a_document_names_exists() {
    let mut checked = 0;
    let mut missing = Vec::new();
    for (document, text) in documents() {
        for path in named_paths(&text) {
            checked += 1;
            if !Path::new(&path).exists() {
                missing.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(checked > 300, "{checked} paths");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Returns the paths from the root of the repository in a text, and the manifests of the
/// packages that `--path` names there.
fn named_paths(text: &str) -> Vec<String> {
    const FOLDERS: [&str; 8] =
        ["examples", "crates", "dev", "charts", "crds", "tests", "docs", "src"];
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-/".contains(c);
    let words = text.split(|c: char| c.is_whitespace() || "`'\"()[]|,;:".contains(c));
    let files = words.filter(|word| {
        let folder = word.split_once('/').map_or("", |(folder, _)| folder);
        // NAME stands for a name that the reader chooses.
        FOLDERS.contains(&folder) && word.chars().all(is_part) && !word.contains("/NAME")
    });
    let packages = text.split("--path ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    let manifest = |package: &str| {
        // … stands for the place of the reader's checkout.
        let folder = package.trim_end_matches(['`', ',']).trim_start_matches("…/");
        format!("{folder}/Cargo.toml")
    };
    files.map(|file| file.trim_end_matches('.').to_owned()).chain(packages.map(manifest)).collect()
}

/// Returns every document with its text.
fn documents() -> BTreeMap<PathBuf, String> {
    let mut found = Vec::new();
    let mut folders = ["docs", "examples", "charts", "crates"].map(PathBuf::from).to_vec();
    let is_document = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    found.extend(entries(Path::new(".")).into_iter().filter(|path| is_document(path)));
    while let Some(folder) = folders.pop() {
        let (inner, files): (Vec<_>, Vec<_>) =
            entries(&folder).into_iter().partition(|path| path.is_dir());
        folders.extend(inner);
        found.extend(files.into_iter().filter(|path| is_document(path)));
    }
    let read = |path: PathBuf| (normal(&path), std::fs::read_to_string(&path).unwrap());
    found.into_iter().map(read).collect()
}

fn without_blocks(text: &str) -> String {
    let mut is_code = false;
    let is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    };
    text.lines().filter(is_prose).collect::<Vec<_>>().join("\n")
}

/// Returns the targets of the links that stay inside the repository: `[text](target)`, and
/// `[name]: target`.
fn targets(text: &str) -> Vec<String> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '\n']).next());
    let defined = text
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: ").map(|(_, target)| target));
    let is_ours = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
    inline.chain(defined).filter(is_ours).map(ToOwned::to_owned).collect()
}

fn resolve(
    document: &Path,
    link: &str,
    documents: &BTreeMap<PathBuf, String>,
) -> Result<(), String> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = match file {
        "" => document.to_owned(),
        file => normal(&document.parent().unwrap().join(file)),
    };
    if !path.exists() {
        return Err(format!("{} does not exist", path.display()));
    }
    if anchor.is_empty() {
        return Ok(());
    }
    let text = documents.get(&path).ok_or("an anchor of a file that is no document")?;
    if anchors(text).contains(anchor) { Ok(()) } else { Err("no such heading".to_owned()) }
}

/// Returns the anchors of the headings, as GitHub derives them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let earlier = times.entry(anchor.clone()).or_default();
        found.insert(if *earlier == 0 { anchor } else { format!("{anchor}-{earlier}") });
        *earlier += 1;
    }
    found
}

/// Returns the path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                found.pop();
            }
            Component::CurDir => {}
            part => found.push(part),
        }
    }
    found
}

#[test]
fn links_and_anchors_are_read_as_github_reads_them() {
    let text = without_blocks("[a](b.md#c)\n```\n[d](e)\n# f\n```\n[g]: h\n[i](https://j)");
    assert_eq!(targets(&text), ["b.md#c", "h"]);
    let headings = anchors("# From `spec.slots` to x\n## Exit codes\n## Exit codes");
    let expected = ["exit-codes", "exit-codes-1", "from-specslots-to-x"];
    assert_eq!(headings.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn paths_are_read_from_prose_and_from_commands() {
    let text = "See `docs/a.md`.\n```\ncargo install --path prove\npython3 examples/b.py c/d\n```\n\
        src/NAME.rs, dev/{e,f}, `--path …/g`, [tests/h.rs](../tests/h.rs).";
    let expected = ["docs/a.md", "examples/b.py", "tests/h.rs", "prove/Cargo.toml", "g/Cargo.toml"];
    assert_eq!(named_paths(text), expected);
}
