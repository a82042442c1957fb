//! Manifests as files: which documents they have, of which kinds, and on which line
//! a field is. What an object may say is `check`'s.

mod check;
mod lines;
mod schema;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

pub(super) use self::check::{Checker, Object};
use super::{Failure, say};
use crate::api::GROUP;

/// Which files.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Files {
    /// A file with manifests, a folder with such files (.yaml, .yml, .json), or - for standard
    /// input; can be given several times
    #[arg(long = "filename", short = 'f', value_name = "FILE", required_unless_present = "others")]
    by_flag: Vec<PathBuf>,

    /// The same, as pre-commit gives them
    #[arg(value_name = "FILE")]
    others: Vec<PathBuf>,

    /// The folders in the folders, too
    #[arg(long, short = 'R')]
    recursive: bool,
}

/// Where in which file something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub file: String,
    pub line: usize,
    /// The number of the document in the file, from 1.
    pub document: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One object of one document.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    pub value: Value,
    /// Where its document begins.
    start: Place,
    /// The document's text.
    text: String,
    /// In a List: which of its items.
    item: Option<usize>,
}

/// A document that can't be read.
#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    pub place: Place,
    pub why: String,
}

impl Manifest {
    /// Where a field of it is: a path such as `spec.slots`. Where there is no such
    /// field, where the nearest around it is.
    pub fn place_of(&self, path: &str) -> Place {
        let prefix = self.item.map(|item| format!("items[{item}].")).unwrap_or_default();
        let line = lines::find(&self.text, &format!("{prefix}{path}")).unwrap_or(1);
        Place { line: self.start.line + line - 1, ..self.start.clone() }
    }

    /// The text at a JSON pointer.
    pub fn text_at(&self, pointer: &str) -> Option<&str> {
        self.value.pointer(pointer)?.as_str()
    }

    /// Its kind and name, as a message says it.
    pub fn what(&self) -> String {
        let kind = self.text_at("/kind").unwrap_or("object");
        let name = self.text_at("/metadata/name").unwrap_or("without a name");
        match self.text_at("/metadata/namespace") {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        }
    }

    /// Whether it is of our group, whatever its kind and version.
    pub fn is_ours(&self) -> bool {
        let version = self.text_at("/apiVersion").unwrap_or_default();
        version.split('/').next() == Some(GROUP)
    }
}

/// What there is in the files.
#[derive(Default)]
pub(super) struct Contents {
    pub manifests: Vec<Manifest>,
    pub unreadable: Vec<Unreadable>,
}

impl Files {
    /// Reads all files.
    pub fn read(&self) -> Result<Contents, Failure> {
        read_all(self.by_flag.iter().chain(&self.others).map(PathBuf::as_path), self.recursive)
    }
}

/// Reads these files, and those in these folders.
pub(super) fn read_all<'a>(
    files: impl Iterator<Item = &'a Path>,
    recursive: bool,
) -> Result<Contents, Failure> {
    let mut contents = Contents::default();
    for file in files {
        if file == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(|error| {
                Failure::new(Failure::CANT_READ, format!("standard input: {error}"))
            })?;
            contents.add("<stdin>", &text);
        } else {
            let mut found = Vec::new();
            collect(file, recursive, &mut found).map_err(|error| unreadable_file(file, &error))?;
            if found.is_empty() {
                say(format!("there is no .yaml, .yml or .json file in {}", file.display()));
            }
            for file in found {
                let text = std::fs::read_to_string(&file)
                    .map_err(|error| unreadable_file(&file, &error))?;
                contents.add(&file.display().to_string(), &text);
            }
        }
    }
    Ok(contents)
}

fn unreadable_file(file: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Failure::USAGE, format!("{} can't be read: {error}", file.display()))
}

/// The file, or the files of the folder.
fn collect(path: &Path, recursive: bool, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !path.is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    let mut entries: Vec<PathBuf> =
        path.read_dir()?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    entries.sort();
    for entry in entries {
        let extension = entry.extension().and_then(|extension| extension.to_str());
        if entry.is_dir() {
            if recursive {
                collect(&entry, recursive, found)?;
            }
        } else if matches!(extension, Some("yaml" | "yml" | "json")) {
            found.push(entry);
        }
    }
    Ok(())
}

impl Contents {
    fn add(&mut self, file: &str, text: &str) {
        for (number, (line, document)) in documents(text).into_iter().enumerate() {
            let start = Place { file: file.to_owned(), line, document: number + 1 };
            match parse(document) {
                Ok(Value::Null) => {}
                Ok(value) => self.add_object(value, &start, document),
                Err(error) => {
                    let within = error.location().map_or(1, |location| location.line());
                    let place = Place { line: line + within - 1, ..start };
                    // Its own line counts from the document.
                    let why = error.to_string();
                    let why = why.split(" at line ").next().unwrap_or_default().to_owned();
                    self.unreadable.push(Unreadable { place, why });
                }
            }
        }
    }

    fn add_object(&mut self, mut value: Value, start: &Place, text: &str) {
        let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
        let manifest =
            |value, item| Manifest { value, start: start.clone(), text: text.to_owned(), item };
        match value.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) if is_list => {
                let items = items.into_iter().enumerate();
                self.manifests.extend(items.map(|(item, value)| manifest(value, Some(item))));
            }
            Some(items) => {
                value["items"] = items;
                self.manifests.push(manifest(value, None));
            }
            None => self.manifests.push(manifest(value, None)),
        }
    }
}

/// The documents of a file, each with the line on which it begins.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut start_line, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        // At the start of a line this is a mark wherever it is.
        if line.strip_prefix("---").is_some_and(|rest| rest.trim_start() != rest || rest.is_empty())
        {
            if at > start {
                documents.push((start_line, &text[start..at]));
            }
            (start, start_line) = (at, number + 1);
        }
        at += line.len();
    }
    documents.push((start_line, &text[start..]));
    documents
}

fn parse(document: &str) -> Result<Value, serde_yaml::Error> {
    // Not straight into JSON's: there the last of two equal keys would win.
    let mut value = serde_yaml::Value::deserialize(serde_yaml::Deserializer::from_str(document))?;
    value.apply_merge()?;
    serde_json::to_value(&value)
        .map(whole)
        .map_err(|error| serde::de::Error::custom(error.to_string()))
}

/// Numbers without a fraction as integers, as they are in kubectl's JSON.
fn whole(value: Value) -> Value {
    /// Up to here each integer has a float of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => match number.as_f64() {
            #[allow(clippy::cast_possible_truncation, reason = "it has no fraction and is small")]
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => {
                Value::from(float as i64)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => Value::Array(items.into_iter().map(whole).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, whole(value))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_begin_where_three_dashes_are() {
        let text = "# a\n---\na: 1\n--- # b\nb: |\n  ---\n---x: 1\n";
        let expected = [(1, "# a\n"), (2, "---\na: 1\n"), (4, "--- # b\nb: |\n  ---\n---x: 1\n")];
        assert_eq!(documents(text), expected);
        assert_eq!(documents("a: 1"), [(1, "a: 1")]);
    }

    #[test]
    fn a_field_is_found_on_its_line_also_in_a_list() {
        let mut contents = Contents::default();
        contents.add(
            "f",
            "---\nkind: List\nitems:\n- kind: A\n  spec:\n    slots: 1\n- kind: B\n  spec:\n    slots: 2\n---\nkind: C\nspec:\n  - {a: 1}\n  - a: 2\n",
        );
        let lines = |manifest: &Manifest, path: &str| manifest.place_of(path).line;
        let [a, b, c] = contents.manifests.try_into().unwrap();
        assert_eq!((lines(&a, "spec.slots"), lines(&b, "spec.slots")), (6, 9));
        assert_eq!((lines(&b, "spec.none"), lines(&b, "metadata.name")), (9, 7));
        assert_eq!((lines(&c, "spec[1].a"), lines(&c, "kind")), (14, 11));
    }

    #[test]
    fn a_number_without_a_fraction_is_an_integer_as_in_kubectl() {
        assert_eq!(parse("[3.0, 1e2, 1.5]").unwrap().to_string(), "[3,100,1.5]");
    }

    #[test]
    fn a_key_given_twice_is_no_manifest() {
        let mut contents = Contents::default();
        contents.add("f", "a: 1\n---\nkind: A\nspec:\n  a: 1\n  a: 2\n");
        assert_eq!(contents.unreadable.len(), 1);
        let found = &contents.unreadable[0];
        assert!(found.why.contains("duplicate"), "{found:?}");
        assert_eq!(found.place.document, 2);
    }
}
