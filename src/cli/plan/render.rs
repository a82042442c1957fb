//! Output of a plan: with a sign and a color for each change for users, as JSON for
//! programs.

use std::borrow::Cow;
use std::io::{IsTerminal, stdout};

use lockkeeper_plan::difference::{Difference, Sign};
use serde::Serialize;

use crate::cli::failure::Failure;
use crate::cli::output::{self, Format};

/// Version of the JSON format. Must be raised for changes that would mislead programs.
const FORMAT_VERSION: u32 = 1;

/// The required change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum Action {
    /// The object does not exist.
    Create,
    /// The object differs.
    Update,
    /// The object is up to date.
    None,
    /// The object is left unchanged, because its manifest sets `suspend`.
    Suspended,
    /// The object cannot be applied.
    Blocked,
}

impl Action {
    /// Returns the action for an object that can be applied.
    pub fn of(exists: bool, changes: &[Difference]) -> Self {
        match (exists, changes.is_empty()) {
            (_, true) => Self::None,
            (false, false) => Self::Create,
            (true, false) => Self::Update,
        }
    }

    /// Whether the object is created or changed.
    pub fn changes(self) -> bool {
        matches!(self, Self::Create | Self::Update)
    }
}

/// The required changes of one object, with their reasons.
#[derive(Clone, Debug, Serialize)]
pub(in crate::cli) struct Shown {
    pub kind: Cow<'static, str>,
    /// kubectl's short name of the kind.
    #[serde(skip)]
    pub short: &'static str,
    pub namespace: String,
    pub name: String,
    /// The server, without credentials.
    pub server: String,
    /// Name of the lock or queue.
    pub target: String,
    pub action: Action,
    pub changes: Vec<Difference>,
    /// Number of holders of slots or tokens that would be removed.
    pub draining: u32,
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Summary {
    create: usize,
    update: usize,
    none: usize,
    suspended: usize,
    blocked: usize,
}

/// All required changes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct Plan<'a> {
    format_version: u32,
    summary: Summary,
    objects: Vec<&'a Shown>,
}

impl<'a> Plan<'a> {
    pub fn of(objects: impl IntoIterator<Item = &'a Shown>) -> Self {
        let objects: Vec<&Shown> = objects.into_iter().collect();
        let count = |action| objects.iter().filter(|shown| shown.action == action).count();
        let summary = Summary {
            create: count(Action::Create),
            update: count(Action::Update),
            none: count(Action::None),
            suspended: count(Action::Suspended),
            blocked: count(Action::Blocked),
        };
        Self { format_version: FORMAT_VERSION, summary, objects }
    }

    pub fn has_changes(&self) -> bool {
        self.summary.create + self.summary.update > 0
    }

    /// Returns the number of objects to create or change.
    pub fn changes(&self) -> usize {
        self.summary.create + self.summary.update
    }

    /// Returns the objects with held slots or tokens that would be removed.
    pub fn draining(&self) -> impl Iterator<Item = &'a Shown> {
        self.objects.iter().copied().filter(|shown| shown.draining > 0)
    }

    /// Fails if an object can't be applied.
    pub fn must_be_possible(&self) -> Result<(), Failure> {
        match self.summary.blocked {
            0 => Ok(()),
            1 => Err(Failure::new(
                Failure::INVALID,
                "1 object can't be applied: see the reason in its entry of the plan",
            )),
            blocked => {
                let message =
                    format!("{blocked} objects can't be applied: see the reasons in their entries");
                Err(Failure::new(Failure::INVALID, message))
            }
        }
    }

    pub fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Table | Format::Wide => output::write(&self.text(format == Format::Wide)),
            Format::Json | Format::Yaml => output::print_data(format, self),
            Format::Name => {
                let changed = self.objects.iter().filter(|shown| shown.action.changes());
                output::write(&changed.map(|shown| shown.called() + "\n").collect::<String>())
            }
        }
    }

    /// Formats the plan as text. Unchanged objects are only counted, unless `all`.
    fn text(&self, all: bool) -> String {
        let paint = is_coloured();
        let is_shown =
            |shown: &&&Shown| shown.action != Action::None || !shown.notes.is_empty() || all;
        let mut lines: Vec<String> =
            self.objects.iter().filter(is_shown).flat_map(|shown| shown.lines(paint)).collect();
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let Summary { create, update, none, suspended, blocked } = self.summary;
        let mut parts = if self.has_changes() {
            vec![format!("{create} to create"), format!("{update} to change")]
        } else {
            vec!["Nothing to change".to_owned()]
        };
        parts.push(format!("{none} as they should be"));
        for (count, what) in [(suspended, "suspended"), (blocked, "blocked")] {
            parts.extend((count > 0).then(|| format!("{count} {what}")));
        }
        lines.push(parts.join(", "));
        lines.join("\n") + "\n"
    }
}

impl Shown {
    /// Returns the name of the object, with kubectl's short name of its kind.
    pub fn called(&self) -> String {
        format!("{}/{}", self.short, self.name)
    }

    fn lines(&self, coloured: bool) -> Vec<String> {
        let (sign, colour) = match self.action {
            Action::Create => ('+', Paint::Green),
            Action::Update => ('~', Paint::Yellow),
            Action::Blocked => ('!', Paint::Red),
            Action::None | Action::Suspended => (' ', Paint::Plain),
        };
        let suspended = if self.action == Action::Suspended { ": suspended" } else { "" };
        let Self { target, server, namespace, .. } = self;
        let head =
            format!("{sign} {} in {namespace}: {target} on {server}{suspended}", self.called());
        let line = |change: &Difference| (Paint::of(change.sign()), change.to_string());
        let mut details: Vec<(Paint, String)> = self.changes.iter().map(line).collect();
        if self.draining > 0 {
            let line = format!(
                "! held, and kept until released: {} (apply needs --allow-drain)",
                self.draining
            );
            details.push((Paint::Red, line));
        }
        details.extend(self.notes.iter().map(|note| (Paint::Plain, note.clone())));
        let details =
            details.iter().map(|(colour, line)| format!("    {}", colour.on(line, coloured)));
        [colour.on(&head, coloured)].into_iter().chain(details).collect()
    }
}

/// A color of the terminal.
#[derive(Clone, Copy)]
enum Paint {
    Plain,
    Red,
    Green,
    Yellow,
}

impl Paint {
    fn of(sign: Sign) -> Self {
        match sign {
            Sign::Added => Self::Green,
            Sign::Changed => Self::Yellow,
            Sign::Removed => Self::Red,
        }
    }

    fn on(self, text: &str, coloured: bool) -> String {
        let code = match self {
            Self::Red => "31",
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Plain => return text.to_owned(),
        };
        if coloured { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Returns whether to use colors, by the usual conventions of terminal programs.
fn is_coloured() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && (stdout().is_terminal() || is_set("CLICOLOR_FORCE"))
}
