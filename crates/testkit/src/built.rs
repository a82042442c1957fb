//! The files that cargo builds for this workspace, and its checkout. The program of the tests or of
//! the measurements finds the others from its own path, because cargo names the program
//! `lockkeeper` only to the tests of that package.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Returns the folder of the running program's profile: `target/debug`, for example. Cargo keeps
/// the programs there, and those of tests and measurements one folder below.
fn folder() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().and_then(Path::parent).expect("cargo started this program").to_owned()
}

fn existing(path: PathBuf, build: &str) -> String {
    assert!(path.exists(), "{} is missing: build it with `{build}`", path.display());
    path.into_os_string().into_string().unwrap()
}

/// Returns the path of the program `lockkeeper`.
pub fn lockkeeper() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| program("lockkeeper"))
}

/// Returns the path of a program of this workspace.
pub fn program(name: &str) -> String {
    existing(folder().join(name), "cargo build --workspace --bins")
}

/// Returns the path of an example of this workspace.
pub fn example(name: &str) -> String {
    existing(folder().join("examples").join(name), "cargo build --workspace --examples")
}

/// Returns the folder for files of tests, which cargo keeps below its target folder.
pub fn scratch() -> PathBuf {
    let scratch = folder().with_file_name("tmp");
    std::fs::create_dir_all(&scratch).unwrap();
    scratch
}

/// Returns the folder of this workspace.
pub fn checkout() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
