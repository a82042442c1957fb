//! `lockkeeper man`: generates the manual pages.

use std::path::PathBuf;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::examples;
use super::failure::Failure;
use super::output;

/// Arguments of `lockkeeper man`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Write one page per command to this directory instead of printing the main page
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments, mut command: Command) -> Result<(), Failure> {
    command.build();
    match &arguments.output {
        None => output::write(&page(&command)?),
        Some(directory) => write_all(&command, "lockkeeper", directory),
    }
}

/// Writes one page for a command and one for each subcommand: `lockkeeper-exec.1`.
fn write_all(command: &Command, name: &str, directory: &std::path::Path) -> Result<(), Failure> {
    let file = directory.join(format!("{name}.1"));
    std::fs::write(&file, page(command)?)
        .map_err(|error| failed(&file.display().to_string(), &error))?;
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    for verb in verbs.filter(|verb| verb.get_name() != "help") {
        write_all(verb, &format!("{name}-{}", verb.get_name()), directory)?;
    }
    Ok(())
}

fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    render(command, &mut page).map_err(|error| failed("the page", &error))?;
    Ok(page)
}

/// Like [`Man::render`], with the usage line of `--help`. Clap's own synopsis lists all
/// options, and leaves out the `--` before a command.
fn render(command: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]).text([roman(usage)]);
    synopsis.to_writer(page)?;
    man.render_description_section(page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(page)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (examples, rest) = examples::split(&after);
    if !examples.is_empty() {
        // Lines as they are: a line that is filled and hyphenated can't be copied.
        let mut section = Roff::new();
        section.control("SH", ["EXAMPLES"]).control("nf", []);
        section.text(examples.lines().map(|line| roman(format!("{line}\n"))).collect::<Vec<_>>());
        section.control("fi", []);
        section.to_writer(page)?;
    }
    if !rest.is_empty() {
        Man::new(command.clone().after_help(rest.to_owned())).render_extra_section(page)?;
    }
    man.render_version_section(page)
}

fn failed(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Failure::CANT_CREATE, format!("could not write {what}: {error}"))
}
