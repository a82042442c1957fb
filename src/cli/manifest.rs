//! Reads manifests from files: their documents, their kinds, and the line of each field.
//! See `check` for validation.

mod check;
mod lines;
mod metadata;
mod schema;
mod text;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use lockkeeper_api::GROUP;
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

    /// Returns whether the object has a name that is not generated.
    pub fn has_name(&self) -> bool {
        self.text_at("/metadata/name").is_some_and(|name| !name.is_empty())
    }

    /// Returns the lock or queue that all objects created from this manifest share,
    /// although each has a generated name.
    pub fn shared_target(&self) -> Option<&str> {
        let target = self.text_at("/spec/lockName").or_else(|| self.text_at("/spec/queueName"));
        target.filter(|_| !self.has_name())
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
        for (number, (line, document)) in text::documents(text).into_iter().enumerate() {
            let start = Place { file: file.to_owned(), line, document: number + 1 };
            match text::parse(document) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
