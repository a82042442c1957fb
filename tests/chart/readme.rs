//! The README's blocks, run one after the other as written, in a separate cluster: it is
//! installed, and two clients hold its first lock.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{PATIENCE, eventually};

use super::installing::Installation;

/// A fenced block: its language, and its text.
type Block = (String, String);

/// Returns the README's blocks, in order.
fn blocks() -> Vec<Block> {
    let text = std::fs::read_to_string("README.md").unwrap();
    let parts: Vec<&str> = text.split("\n```").collect();
    let block = |part: &&str| {
        let (language, text) = part.split_once('\n').unwrap();
        (language.to_owned(), text.to_owned())
    };
    parts.iter().skip(1).step_by(2).map(block).collect()
}

/// The only block of this language that contains a text.
fn block<'a>(blocks: &'a [Block], language: &str, text: &str) -> &'a str {
    let mut all = blocks.iter().filter(|block| block.0 == language && block.1.contains(text));
    let (one, another) = (all.next(), all.next());
    assert!(another.is_none(), "{text} is in two blocks");
    &one.unwrap_or_else(|| panic!("no block in {language} has {text}")).1
}

/// A user's directory: the chart, the examples that the README applies, with the user's
/// servers, and a program to run.
struct Checkout(PathBuf);

impl Checkout {
    fn new(place: &Installation) -> Self {
        let root = place.cluster.directory().join("checkout");
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        for folder in ["examples/secret", "examples/semaphore"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::os::unix::fs::symlink(source.join("charts"), root.join("charts")).unwrap();
        let lock = "examples/semaphore/deploy.yaml";
        std::fs::copy(source.join(lock), root.join(lock)).unwrap();
        let secret = "examples/secret/default-connections.yaml";
        let text = std::fs::read_to_string(source.join(secret)).unwrap();
        let with_servers = text.lines().map(|line| match line.split_once(": ") {
            Some((key @ "  amqpUri", _)) => format!("{key}: {}\n", place.amqp_url()),
            Some((key @ "  managementUri", _)) => {
                format!("{key}: {}\n", variable("RABBITMQ_MANAGEMENT_URL"))
            }
            Some((key @ "  redisUri", _)) => format!("{key}: {}\n", place.redis_url()),
            _ => format!("{line}\n"),
        });
        std::fs::write(root.join(secret), with_servers.collect::<String>()).unwrap();
        let program = root.join("deploy.sh");
        std::fs::write(&program, "#!/bin/sh\nuntil [ -e deployed ]; do sleep 0.2; done\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(root)
    }

    /// Starts a script as a user's shell would, with the broker's address in `AMQP_URL`.
    fn start(&self, place: &Installation, script: &str) -> Child {
        let programs = Path::new(built::lockkeeper()).parent().unwrap();
        let path = format!("{}:{}", programs.display(), variable("PATH"));
        place
            .command("bash", &["-euxc", script])
            .current_dir(&self.0)
            .env("PATH", path)
            .env("AMQP_URL", place.amqp_url())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

/// Waits for the end of a script, which succeeds.
fn succeeded(script: Child) -> String {
    let output = script.wait_with_output().unwrap();
    let (said, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&said).into_owned()
}

/// Returns the cells of a table, without the column AGE.
fn cells(table: &str) -> Vec<Vec<String>> {
    let row = |line: &str| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = table.lines().map(row).collect();
    let age = rows[0].iter().position(|cell| cell == "AGE").unwrap();
    for row in &mut rows {
        row.remove(age);
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn the_blocks_of_the_readme_run_as_written() {
    let blocks = blocks();
    let manifest = block(&blocks, "yaml", "kind: Semaphore");
    let example = std::fs::read_to_string("examples/semaphore/deploy.yaml").unwrap();
    assert!(example.ends_with(&format!("{manifest}\n")), "{example}");
    let install = block(&blocks, "sh", "helm install");
    let first = block(&blocks, "sh", "lockkeeper exec");
    let shown = block(&blocks, "console", "kubectl get sem");
    assert_eq!(blocks.len(), 5, "a block that is not run: {blocks:?}");

    let place = Installation::new().await;
    let checkout = Checkout::new(&place);
    succeeded(checkout.start(&place, install));
    let operator = place.started();
    let one = checkout.start(&place, first);
    let (command, table) = shown.trim_start_matches("$ ").split_once('\n').unwrap();
    let get: Vec<&str> = command.split_whitespace().collect();
    let holds =
        |holders: &str| place.kubectl(&get[1..], "").is_ok_and(|table| table.contains(holders));
    eventually("the first client holds the lock", PATIENCE, async || holds("build-41")).await;
    let again = first.lines().last().unwrap().replace("build-41", "build-42");
    let two = checkout.start(&place, &again);
    eventually("both hold the lock", PATIENCE, async || holds("build-41, build-42")).await;
    assert_eq!(cells(&place.kubectl(&get[1..], "").unwrap()), cells(table));

    std::fs::write(checkout.0.join("deployed"), "").unwrap();
    succeeded(one);
    succeeded(two);
    place.kubectl(&["delete", "-n", "demo", "sem", "deploy", "--timeout=120s"], "").unwrap();
    operator.stop();
}
