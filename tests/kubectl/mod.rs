//! The subcommands for users of kubectl and for pipelines, as processes against a real
//! API server, broker and Redis. One file per subject.

mod apply;
mod completion;
mod doctor;
mod mutations;
mod plugin;
mod validate;

use std::path::PathBuf;
use std::process::Stdio;

use lockkeeper_testkit::world::World;
use lockkeeper_testkit::{built, environment};
use tokio::process::Command;

/// Result of a run of the program.
struct Ended {
    code: Option<i32>,
    out: String,
    said: String,
}

/// A directory that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = format!("{}/kubectl-{}", env!("CARGO_TARGET_TMPDIR"), environment::random());
        std::fs::create_dir_all(&name).unwrap();
        Self(name.into())
    }

    /// Writes a file. Returns its path.
    fn write(&self, name: &str, text: &str) -> String {
        let file = self.0.join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn ended(command: &mut Command) -> Ended {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), said: text(output.stderr) }
}

/// Returns the program's command, without connections in the environment.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(built::lockkeeper());
    command.args(arguments);
    for name in ["AMQP_URL", "RABBITMQ_MANAGEMENT_URL", "REDIS_URL"] {
        command.env_remove(name);
    }
    command
}

/// Runs the program in the world's namespace.
async fn in_namespace(world: &World, arguments: &[&str]) -> Ended {
    ended(program(arguments).args(["--namespace", &world.namespace])).await
}
