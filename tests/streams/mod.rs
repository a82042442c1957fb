//! Every verb of the program with broken standard streams, and at the limits of a process:
//! exit codes as documented, no panic, and nothing taken. `verbs` is the table.

mod verbs;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use clap::CommandFactory;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::world::{World, in_a_world};
use lockkeeper_testkit::{built, environment};
use tokio::process::Command;
use verbs::{Row, TABLE};

/// Exit codes for a standard output that can't be written, one without a reader, and a
/// standard input that can't be read.
const CANT_CREATE: i32 = 73;
const NO_READER: i32 = 141;
const CANT_READ: i32 = 74;
const UNAVAILABLE: i32 = 69;
const NOT_ACQUIRED: i32 = 75;

/// No case takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// The state in which a verb is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Normal,
    StdoutClosed,
    StdoutFull,
    StdoutWithoutReader,
    FileSizeLimit,
    StderrClosed,
    StdinClosed,
    ChildrenIgnored,
    TwelveDescriptors,
}

impl Case {
    const ALL: [Self; 9] = [
        Self::Normal,
        Self::StdoutClosed,
        Self::StdoutFull,
        Self::StdoutWithoutReader,
        Self::FileSizeLimit,
        Self::StderrClosed,
        Self::StdinClosed,
        Self::ChildrenIgnored,
        Self::TwelveDescriptors,
    ];

    /// Returns a line of bash that runs `line` in this state, with its output in `file`.
    fn applied_to(self, line: &str, file: &str) -> String {
        match self {
            Self::Normal => format!("{line} >{file}"),
            Self::StdoutClosed => format!("{line} >&-"),
            Self::StdoutFull => format!("{line} >/dev/full"),
            Self::StdoutWithoutReader => {
                format!("exec 9> >(exec true); wait $!; {line} >&9 9>&-")
            }
            Self::FileSizeLimit => format!(": >{file}; ulimit -f 0; {line} >>{file}"),
            Self::StderrClosed => format!("{line} >{file} 2>&-"),
            Self::StdinClosed => format!("{line} >{file} <&-"),
            Self::ChildrenIgnored => format!("trap '' CHLD; {line} >{file}"),
            Self::TwelveDescriptors => format!("ulimit -n 12; {line} >{file}"),
        }
    }

    /// Returns the exit codes that are documented for this state.
    fn codes(self, row: &Row) -> Vec<i32> {
        match self {
            Self::StdoutClosed if row.takes_for_output => vec![CANT_CREATE],
            Self::StdoutFull | Self::FileSizeLimit if row.writes => vec![CANT_CREATE],
            Self::StdoutWithoutReader if row.writes => vec![NO_READER],
            Self::StdinClosed if row.reads => vec![CANT_READ],
            // The limit also applies to the file in memory with the element of a command.
            Self::FileSizeLimit if row.starts_command => vec![row.code, UNAVAILABLE],
            // A verb may need more descriptors than these, and then says so.
            Self::TwelveDescriptors => {
                vec![row.code, 64, UNAVAILABLE, CANT_CREATE, CANT_READ, NOT_ACQUIRED]
            }
            _ => vec![row.code],
        }
    }
}

/// Result of a case.
struct Ended {
    code: Option<i32>,
    output: String,
    said: String,
}

/// The servers of a test, and the folder of its files.
struct Servers<'a> {
    world: &'a World,
    folder: String,
}

impl Servers<'_> {
    /// Runs a line of bash to its end, in which `lockkeeper` is this build.
    async fn run(&self, line: &str) -> Ended {
        let folder = std::path::Path::new(built::lockkeeper()).parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("env");
        command
            .args(["--default-signal", "bash", "-c", line])
            .current_dir(&self.folder)
            .env("PATH", path)
            .env("AMQP_URL", self.world.amqp_url())
            .env("REDIS_URL", self.world.redis_url())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = output.unwrap_or_else(|_| panic!("it ends: {line}")).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended { code: output.status.code(), output: text(output.stdout), said: text(output.stderr) }
    }

    /// Runs a verb in this state, on a queue, a lock and a manifest of its own.
    async fn check(&self, row: &Row, case: Case) {
        let name = format!("{}-{case:?}", row.verb.replace(' ', "-")).to_lowercase();
        let manifest = format!(
            "{{kind: Semaphore, apiVersion: lockkeeper.dev/v1alpha1, metadata: {{name: {name}, namespace: {}}}, spec: {{slots: 1}}}}",
            self.world.namespace
        );
        std::fs::write(format!("{}/{name}.yaml", self.folder), manifest).unwrap();
        let with_names =
            |text: &str| text.replace("NAMESPACE", &self.world.namespace).replace("NAME", &name);
        if !row.before.is_empty() {
            let before = self.run(&format!("set -e; {}", with_names(row.before))).await;
            assert_eq!(before.code, Some(0), "before {}: {}", row.verb, before.said);
        }
        let line = with_names(row.line);
        let ended = self.run(&case.applied_to(&line, &format!("{name}.out"))).await;
        let what = format!("{case:?}: {line}: {:?}: {}", ended.code, ended.said);
        let codes = case.codes(row);
        assert!(ended.code.is_some_and(|code| codes.contains(&code)), "not {codes:?}: {what}");
        assert!(!ended.said.contains("panicked"), "{what}");
        if case == Case::Normal {
            let written = std::fs::read(format!("{}/{name}.out", self.folder)).unwrap();
            assert_eq!(!written.is_empty(), row.writes, "{what}");
        }
        let is_lost = ended.code != Some(row.code);
        if is_lost && !row.kept.is_empty() {
            let kept = self.run(&with_names(row.kept)).await;
            assert_eq!(kept.output, row.unchanged, "nothing is taken or closed: {what}");
        }
    }
}

/// Returns the names of all verbs without further ones, such as `queue get`.
fn verbs_of(command: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
    let more = command.get_subcommands().filter(|verb| verb.get_name() != "help");
    for verb in more {
        let path = format!("{path} {}", verb.get_name());
        if verb.has_subcommands() {
            verbs_of(verb, &path, found);
        } else {
            found.insert(path.trim().to_owned());
        }
    }
}

#[test]
fn the_table_of_streams_has_a_row_for_every_verb() {
    let mut verbs = BTreeSet::new();
    verbs_of(&lockkeeper::cli::Cli::command(), "", &mut verbs);
    let rows: BTreeSet<String> = TABLE.iter().map(|row| row.verb.to_owned()).collect();
    assert_eq!(verbs, rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_survives_broken_streams_and_limits_with_its_documented_exit_code() {
    in_a_world("streams", async |world| {
        world.apply::<Semaphore>("deploy", "{slots: 1}").await.unwrap();
        world.apply::<PressureQueue>("jobs", "{bound: 5}").await.unwrap();
        let folder = format!("{}/streams-{}", env!("CARGO_TARGET_TMPDIR"), environment::random());
        std::fs::create_dir_all(&folder).unwrap();
        let place = Servers { world: &world, folder };
        for row in TABLE {
            futures::future::join_all(Case::ALL.map(|case| place.check(row, case))).await;
        }
        std::fs::remove_dir_all(&place.folder).unwrap();
    })
    .await;
}

/// Help and version are not verbs, and are printed before there is one.
#[tokio::test(flavor = "multi_thread")]
async fn help_and_version_report_an_output_that_cannot_be_written() {
    in_a_world("help", async |world| {
        let place = Servers { world: &world, folder: env!("CARGO_TARGET_TMPDIR").to_owned() };
        for line in ["lockkeeper --help", "lockkeeper --version", "lockkeeper queue get --help"] {
            let full = place.run(&format!("{line} >/dev/full")).await;
            assert_eq!(full.code, Some(CANT_CREATE), "{line}: {}", full.said);
            let broken = place.run(&Case::StdoutWithoutReader.applied_to(line, "")).await;
            assert_eq!((broken.code, broken.said.as_str()), (Some(NO_READER), ""), "{line}");
        }
    })
    .await;
}
