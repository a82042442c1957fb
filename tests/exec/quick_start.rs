//! The quick start without Kubernetes: its commands, as written, except those that install the
//! servers.

use std::path::Path;

use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::variable;
use tokio::process::Command;

/// Names that other tests do not use, in place of the document's.
const RENAMED: (&str, &str) = ("quick.", "quick-start-test.");

/// Returns the document's commands. The addresses are those of the environment.
fn script() -> String {
    let text = std::fs::read_to_string("docs/quick-start.md").unwrap();
    let blocks = text.split("\n```").skip(1).step_by(2).filter_map(|it| it.strip_prefix("sh\n"));
    let lines = blocks.flat_map(str::lines);
    let lines = lines.filter(|line| !line.starts_with("sudo ") && !line.starts_with("export "));
    let lines: Vec<String> = lines.map(|line| line.replace(RENAMED.0, RENAMED.1)).collect();
    lines.join("\n")
}

#[tokio::test]
async fn each_command_of_the_quick_start_works_as_described() {
    let programs = Path::new(built::lockkeeper()).parent().unwrap();
    // -m: an interactive shell has jobs, which `kill %1` names.
    let mut bash = Command::new("bash");
    bash.args(["-emc", &script()]);
    bash.env("PATH", format!("{}:{}", programs.display(), variable("PATH")));
    let output = bash.kill_on_drop(true).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, printed) = (text(&output.stderr), text(&output.stdout));
    assert!(output.status.success(), "{said}\n{printed}");
    for expected in ["build-41", "deploy the shop", "build-42", "exit code 75", "my turn", "\n55\n"]
    {
        assert!(printed.contains(expected), "{expected}: {printed}\n{said}");
    }
}
