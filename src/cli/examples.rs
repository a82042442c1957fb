//! What `--help` and the manual pages show besides the arguments: examples of each command that
//! has many options, and the commands in groups.

use std::fmt::Write;

use clap::Command;

/// What an example does, and its line.
type Example = (&'static str, &'static str);

/// The verbs of a command, and its examples.
const EXAMPLES: [(&[&str], &[Example]); 8] = [
    (
        &["exec"],
        &[
            ("run one deployment at a time", "lockkeeper exec demo.deploy -- ./deploy.sh"),
            (
                "in a pipeline: wait for at most 10 minutes, and show others the holder and the reason",
                "lockkeeper exec --timeout 10m --identity ci --reason release demo.deploy -- make deploy",
            ),
            (
                "skip the work if another does it",
                "lockkeeper exec --no-wait -E 0 demo.backup -- backup",
            ),
            (
                "take the lock's name and broker from a Semaphore",
                "lockkeeper exec sem/deploy -n demo -- ./deploy.sh",
            ),
            ("run a line of shell", "lockkeeper exec demo.deploy -- sh -c 'build && deploy'"),
        ],
    ),
    (
        &["hold"],
        &[
            ("hold a slot until Ctrl-C", "lockkeeper hold demo.deploy --reason maintenance"),
            (
                "hold it for the other containers of a Pod",
                "lockkeeper hold demo.deploy --listen 0.0.0.0:8080 --on-lost warn",
            ),
            (
                "hold it for the later steps of a pipeline, for at most 2 hours",
                "lockkeeper hold demo.deploy --background --state /tmp/deploy.lock --release-after 2h",
            ),
        ],
    ),
    (
        &["verify"],
        &[
            (
                "in a command of exec, before a step that must not be done twice",
                "lockkeeper verify",
            ),
            ("in a later step of a pipeline", "lockkeeper verify --state /tmp/deploy.lock"),
        ],
    ),
    (
        &["release"],
        &[("in the last step of a pipeline", "lockkeeper release --state /tmp/deploy.lock")],
    ),
    (
        &["semaphore"],
        &[
            (
                "create a lock for three holders",
                "lockkeeper semaphore create demo.deploy --slots 3",
            ),
            ("resize it while it is used", "lockkeeper semaphore set demo.deploy 5"),
            ("see its holders", "lockkeeper semaphore holders demo.deploy -o wide"),
        ],
    ),
    (
        &["queue"],
        &[
            ("create a queue of at most 100 elements", "lockkeeper queue create jobs --bound 100"),
            (
                "put each line of the input, and let others put more later",
                "lockkeeper queue put jobs --keep-open",
            ),
            (
                "run a command for each element, four at once",
                "lockkeeper queue run jobs --concurrency 4 -- ./work",
            ),
            ("see its length, clients and elements in work", "lockkeeper queue stat jobs"),
        ],
    ),
    (
        &["doctor"],
        &[
            ("find faults in all namespaces", "lockkeeper doctor -A"),
            ("wait for the operator after its installation", "lockkeeper doctor --wait 2m"),
            ("find out why a client can't hold a lock", "lockkeeper doctor --lock demo.deploy"),
        ],
    ),
    (
        &["install"],
        &[("in an init container, into a volume of the Pod", "lockkeeper install /lockkeeper-bin")],
    ),
];

/// The commands by subject.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Locks", &["exec", "hold", "verify", "release", "semaphore", "mutex"]),
    ("Queues", &["queue"]),
    (
        "Objects in Kubernetes",
        &["list", "holders", "waiters", "suspend", "resume", "revoke", "doctor"],
    ),
    ("Manifests", &["validate", "plan", "apply", "crds"]),
    ("This program", &["operator", "completion", "man", "install"]),
];

/// Adds examples and groups to the help of these commands.
pub(super) fn added(mut tree: Command) -> Command {
    for (path, examples) in EXAMPLES {
        tree = with_examples(tree, path, &text(examples));
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{}\nOptions:\n{{options}}{{after-help}}",
        groups(&tree)
    );
    tree.help_template(template)
}

fn with_examples(command: Command, path: &[&'static str], text: &str) -> Command {
    match path {
        [] => {
            let rest = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            command.after_help(format!("{text}{}{rest}", if rest.is_empty() { "" } else { "\n" }))
        }
        [verb, rest @ ..] => command.mut_subcommand(*verb, |verb| with_examples(verb, rest, text)),
    }
}

/// Heading of the examples.
const HEADING: &str = "Examples:\n";

/// Splits the end of a command's help into its examples and the rest.
pub(super) fn split(after_help: &str) -> (&str, &str) {
    match after_help.strip_prefix(HEADING) {
        Some(examples) => examples.split_once("\n\n").unwrap_or((examples, "")),
        None => ("", after_help),
    }
}

fn text(examples: &[Example]) -> String {
    let mut text = HEADING.to_owned();
    for (what, line) in examples {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  # {what}\n  {line}");
    }
    text
}

fn groups(tree: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "\n{heading}:");
        for name in names {
            let about = tree.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:<10}  {about}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_example_is_a_command_line_of_its_command() {
        for (path, examples) in EXAMPLES {
            for (_, line) in examples {
                // A quoted part is one word.
                let mut words: Vec<String> = Vec::new();
                for (index, part) in line.split('\'').enumerate() {
                    match index % 2 {
                        0 => words.extend(part.split_whitespace().map(str::to_owned)),
                        _ => words.push(part.to_owned()),
                    }
                }
                assert_eq!(words[0], "lockkeeper");
                assert_eq!(words[1..=path.len()], *path, "{line}");
                let parsed = Cli::try_parse_from(&words);
                assert!(
                    parsed.is_ok(),
                    "{line}: {}",
                    parsed.err().map(|e| e.to_string()).unwrap_or_default()
                );
            }
            let mut command = added(Cli::command());
            for verb in path {
                command = command.find_subcommand(verb).unwrap().clone();
            }
            let help = command.render_help().to_string();
            assert!(help.contains(examples[0].1), "{help}");
        }
    }

    #[test]
    fn every_verb_is_in_one_group_of_the_overview() {
        let tree = added(Cli::command());
        let verbs = tree.get_subcommands().filter(|verb| !verb.is_hide_set());
        let verbs: BTreeSet<&str> = verbs.map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), verbs);
        assert_eq!(grouped.len(), verbs.len());
    }
}
