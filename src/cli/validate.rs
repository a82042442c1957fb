//! `lockkeeper validate`: validates manifests as the API server would, without one.

use serde::Serialize;

use super::common::say;
use super::failure::Failure;
use super::manifest::{Checker, Contents, Files, Manifest, Place};
use super::output::{self, Format};

/// Arguments of `lockkeeper validate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(flatten)]
    files: Files,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

const EXIT_CODES: &str = "\
Exit codes: 0 all objects are valid, or there are none; 1 an object is invalid; 64 invalid usage, \
or a file can't be read.

Changes of immutable fields are not detected, because only the API server has the previous \
values.";

/// A problem and its location.
#[derive(Serialize)]
struct Shown {
    file: String,
    line: usize,
    document: usize,
    object: String,
    /// Whether it is only a warning.
    warning: bool,
    field: String,
    message: String,
}

#[derive(Serialize)]
struct Answer {
    valid: bool,
    objects: usize,
    problems: Vec<Shown>,
}

/// The problems, and the number of objects.
#[derive(Default)]
struct Problems {
    objects: usize,
    skipped: usize,
    invalid: usize,
    list: Vec<Shown>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let problems = Problems::of(arguments.files.read()?);
    let Problems { objects, invalid, skipped, list } = problems;
    match arguments.output {
        Format::Table | Format::Wide => output::write(&lines(&list))?,
        format => {
            let columns = [("FILE", false)];
            let rows: Vec<Vec<String>> =
                list.iter().map(|shown| vec![shown.file.clone()]).collect();
            let answer = Answer { valid: invalid == 0, objects, problems: list };
            output::print(format, &answer, &columns, &rows, "FILE")?;
        }
    }
    let others = match skipped {
        0 => String::new(),
        skipped => format!(", {skipped} of other kinds were not looked at"),
    };
    say(format!("{} of {objects} objects are valid{others}", objects - invalid.min(objects)));
    if invalid == 0 { Ok(()) } else { Err(Failure::silent(Failure::INVALID)) }
}

fn lines(list: &[Shown]) -> String {
    let line = |shown: &Shown| {
        let field = match shown.field.as_str() {
            "" => String::new(),
            field => format!(" {field}:"),
        };
        let warning = if shown.warning { " warning:" } else { "" };
        let Shown { file, line, object, message, .. } = shown;
        format!("{file}:{line}: {object}:{field}{warning} {message}\n")
    };
    list.iter().map(line).collect()
}

impl Problems {
    fn of(contents: Contents) -> Self {
        let checker = Checker::new();
        let mut problems = Self::default();
        for found in contents.unreadable {
            problems.invalid += 1;
            problems.objects += 1;
            problems.add(found.place, "not YAML", false, "", &found.why);
        }
        for manifest in &contents.manifests {
            if manifest.is_ours() {
                problems.look_at(&checker, manifest);
            } else {
                problems.skipped += 1;
                let place = manifest.place_of("kind");
                say(format!("{place}: {} is not looked at", manifest.what()));
            }
        }
        problems
    }

    fn look_at(&mut self, checker: &Checker, manifest: &Manifest) {
        self.objects += 1;
        match checker.check(manifest) {
            Ok(object) => {
                if let Some(refusal) = object.refusal() {
                    let remark = format!("the operator will refuse it: {refusal}");
                    let place = manifest.place_of("metadata.name");
                    self.add(place, &manifest.what(), true, "", &remark);
                }
                if let Some(target) = manifest.shared_target() {
                    let remark = format!(
                        "each object that is created from this manifest stands for {target}: set metadata.name, or leave the name of the lock or queue out"
                    );
                    let place = manifest.place_of("metadata.generateName");
                    self.add(place, &manifest.what(), true, "", &remark);
                }
            }
            Err(found) => {
                self.invalid += 1;
                for problem in found {
                    let place = manifest.place_of(&problem.path);
                    self.add(place, &manifest.what(), false, &problem.path, &problem.message);
                }
            }
        }
    }

    fn add(&mut self, place: Place, object: &str, warning: bool, field: &str, message: &str) {
        let Place { file, line, document } = place;
        self.list.push(Shown {
            file,
            line,
            document,
            object: object.to_owned(),
            warning,
            field: field.to_owned(),
            message: message.to_owned(),
        });
    }
}
