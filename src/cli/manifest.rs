//! Reads manifests from files: their documents, their kinds, and the line of each field.
//! See `check` for validation.

mod check;
mod lines;
mod schema;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use lockkeeper_api::GROUP;
use serde::Deserialize;
use serde_json::Value;

pub(super) use self::check::Checker;
use super::common::say;
use super::failure::Failure;
use super::streams::{Stdin, unreadable};

/// The files to read.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Files {
    /// File with manifests, directory with such files (.yaml, .yml, .json), or - for
    /// standard input; may be repeated
    #[arg(long = "filename", short = 'f', value_name = "FILE", required_unless_present = "others")]
    by_flag: Vec<PathBuf>,

    /// Files as positional arguments, as passed by pre-commit
    #[arg(value_name = "FILE")]
    others: Vec<PathBuf>,

    /// Read directories recursively
    #[arg(long, short = 'R')]
    recursive: bool,
}

/// A location in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub file: String,
    pub line: usize,
    /// The number of the document in the file, starting at 1.
    pub document: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One object of a document.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    pub value: Value,
    /// The start of its document.
    start: Place,
    /// The document's text.
    text: String,
    /// The index of the object in a List.
    item: Option<usize>,
}

/// A document that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    pub place: Place,
    pub why: String,
}

impl Manifest {
    /// Returns the location of a field by its path, for example `spec.slots`. If the
    /// field does not exist, returns the location of its closest parent that does.
    pub fn place_of(&self, path: &str) -> Place {
        let prefix = self.item.map(|item| format!("items[{item}].")).unwrap_or_default();
        let line = lines::find(&self.text, &format!("{prefix}{path}")).unwrap_or(1);
        Place { line: self.start.line + line - 1, ..self.start.clone() }
    }

    /// Returns the text at a JSON pointer.
    pub fn text_at(&self, pointer: &str) -> Option<&str> {
        self.value.pointer(pointer)?.as_str()
    }

    /// Returns the kind and name for messages.
    pub fn what(&self) -> String {
        let kind = self.text_at("/kind").unwrap_or("object");
        let name = self.text_at("/metadata/name").unwrap_or("without a name");
        match self.text_at("/metadata/namespace") {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        }
    }

    /// Returns whether the object is of this program's API group, in any kind and
    /// version.
    pub fn is_ours(&self) -> bool {
        let version = self.text_at("/apiVersion").unwrap_or_default();
        version.split('/').next() == Some(GROUP)
    }
}

/// The contents of all files.
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

/// Reads files, and the files of directories.
pub(super) fn read_all<'a>(
    files: impl Iterator<Item = &'a Path>,
    recursive: bool,
) -> Result<Contents, Failure> {
    let mut contents = Contents::default();
    for file in files {
        if file == Path::new("-") {
            let mut text = String::new();
            let mut stdin = &Stdin::open_or_fail()?;
            stdin.read_to_string(&mut text).map_err(|error| unreadable(&error))?;
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

/// Collects the file, or the files of the directory.
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
        // A byte order mark, which some Windows editors write.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (number, (line, document)) in documents(text).into_iter().enumerate() {
            let start = Place { file: file.to_owned(), line, document: number + 1 };
            match parse(document) {
                Ok(Value::Null) => {}
                Ok(value) => self.add_object(value, &start, document),
                Err(error) => {
                    let within = error.location().map_or(1, |location| location.line());
                    let place = Place { line: line + within - 1, ..start };
                    // The line number in the error is relative to the document.
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

/// Returns the documents of a file, each with the number of its first line.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut start_line, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        // At the start of a line, `---` is a document marker in any context.
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
    // Not directly into a JSON value, in which the last of two equal keys would win.
    let mut value = serde_yaml::Value::deserialize(serde_yaml::Deserializer::from_str(document))?;
    value.apply_merge()?;
    serde_json::to_value(&value)
        .map(whole)
        .map_err(|error| serde::de::Error::custom(error.to_string()))
}

/// Converts floats without a fraction to integers, as in kubectl's JSON.
fn whole(value: Value) -> Value {
    /// Up to this value, floats represent every integer exactly.
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
    fn a_byte_order_mark_is_no_part_of_the_first_document() {
        let mut contents = Contents::default();
        contents.add("f", "\u{feff}---\nkind: A\n---\nkind: B\n");
        assert!(contents.unreadable.is_empty(), "{:?}", contents.unreadable);
        let kinds = contents.manifests.iter().map(|manifest| manifest.text_at("/kind"));
        assert!(kinds.eq([Some("A"), Some("B")]));
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
