//! Invalid usage, as clap reports it, with a usage line that fits everywhere, and tips for what
//! users of other programs try first. See `failure` for the errors of a valid command line.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, Command};

/// What other programs call the verbs, and what to use here.
const VERBS: [(&[&str], &str); 7] = [
    (
        &["acquire", "lock", "with", "run-with-lock", "flock"],
        "'exec' runs a command while it holds a lock, and 'hold' holds one until a signal arrives",
    ),
    (
        &["run", "do", "start"],
        "'exec' runs a command while it holds a lock, and 'queue run' one for each element of a queue",
    ),
    (
        &["unlock", "free"],
        "a lock is released by the end of the process that holds it; 'release' ends a hold in the background, and 'revoke' takes a slot from its holder",
    ),
    (
        &["status", "state", "show", "describe", "info", "get", "top", "count"],
        "'list' shows the objects in Kubernetes, 'semaphore count' and 'queue stat' ask the server, and 'doctor' finds faults; 'queue get' takes elements",
    ),
    (&["version"], "'--version' prints the version"),
    (
        &["put", "push", "pop", "enqueue", "dequeue", "publish", "consume", "peek"],
        "'queue put', 'queue get' and 'queue peek' work with the elements of a queue",
    ),
    (
        &["create", "delete", "destroy", "set", "resize", "scale", "grow", "shrink"],
        "'semaphore' and 'queue' have the verbs that administer a lock or a queue on its server; 'kubectl scale' resizes an object",
    ),
];

/// Adds tips to an error of clap, and replaces its usage line. Clap's own names options whose
/// value comes from the environment as if they were required.
pub(super) fn explained(
    mut error: Error,
    mut tree: Command,
    arguments: impl Iterator<Item = OsString>,
) -> Error {
    tree.build();
    let mut command = &tree;
    for argument in arguments.skip(1) {
        let Some(found) = command.find_subcommand(&argument) else { break };
        command = found;
    }
    let mut command = command.clone();
    if error.get(ContextKind::Usage).is_some() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    }
    if let Some(tip) = tip(&error, &command) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}

fn tip(error: &Error, command: &Command) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        // Only the program itself has this verb, and only its verbs are tipped.
        ErrorKind::InvalidSubcommand if command.find_subcommand("exec").is_some() => {
            let verb = text(ContextKind::InvalidSubcommand)?;
            let found = VERBS.iter().find(|(names, _)| names.contains(&verb));
            found.map(|(_, tip)| (*tip).to_owned())
        }
        ErrorKind::UnknownArgument => {
            let argument = text(ContextKind::InvalidArg)?;
            let runs_a_command = command.get_positionals().any(Arg::is_last_set);
            let name = command.get_bin_name()?;
            let target = command.get_positionals().next()?.get_value_names()?.first()?;
            let has_slots = command.get_arguments().any(|option| option.get_id() == "slots");
            if argument.starts_with('-') {
                None
            } else if runs_a_command {
                Some(format!("put -- before the command: '{name} {target} -- {argument} ...'"))
            } else if has_slots {
                Some(format!(
                    "the number of slots is an option: '{name} {target} --slots {argument}'"
                ))
            } else if name.ends_with(" put") {
                Some(format!(
                    "elements are lines of standard input: 'echo {argument} | {name} {target}'"
                ))
            } else {
                None
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Cli;

    fn message(line: &[&str]) -> String {
        let line = [&["lockkeeper"], line].concat();
        let error = Cli::try_parse_from(&line).unwrap_err();
        explained(error, Cli::command(), line.iter().map(OsString::from)).to_string()
    }

    #[test]
    fn a_mistake_is_answered_with_the_way_that_works() {
        for (line, says) in [
            (&["exec", "demo.deploy", "echo", "hi"][..], "exec LOCK -- echo ...'"),
            (&["semaphore", "create", "demo.deploy", "3"], "create NAME --slots 3'"),
            (&["queue", "put", "jobs", "a"], "'echo a | lockkeeper queue put QUEUE'"),
            (&["queue", "run", "jobs", "gzip"], "queue run QUEUE -- gzip ...'"),
            (&["acquire", "demo.deploy"], "'exec' runs a command while it holds a lock"),
            (&["lock"], "'hold' holds one"),
            (&["run"], "'queue run'"),
            (&["status"], "'list' shows"),
            (&["put", "jobs"], "'queue put'"),
            (&["version"], "'--version'"),
            (&["unlock"], "the end of the process that holds it"),
            (&["exce", "demo.deploy"], "similar subcommand exists: 'exec'"),
            (&["exec", "--timout", "5s", "demo.deploy", "--", "true"], "'--timeout'"),
        ] {
            let message = message(line);
            assert!(message.contains(says), "{line:?}: {message}");
            assert_eq!(
                message.matches("tip:").count().max(1),
                1 + usize::from(line.contains(&"--timout")),
                "{message}"
            );
        }
    }

    /// Clap shows them in the usage line of an error as if they were required.
    #[test]
    fn the_usage_line_names_no_option_whose_value_is_in_the_environment() {
        for line in [
            &["exec"][..],
            &["exec", "demo.deploy"],
            &["queue", "put"],
            &["semaphore", "create", "x"],
        ] {
            let message = message(line);
            let usage = message.lines().find(|line| line.starts_with("Usage:")).unwrap();
            assert!(usage.contains(&format!("lockkeeper {}", line[0])), "{usage}");
            assert!(!usage.contains("url"), "{usage}");
        }
    }
}
