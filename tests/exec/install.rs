//! `lockkeeper install`: the copy of the program for another container.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::exec::commands::Scratch;
use lockkeeper_testkit::built;

#[test]
fn the_program_is_copied_also_over_a_copy_that_runs_and_by_a_copy() {
    let scratch = Scratch::new();
    let directory = std::path::PathBuf::from(scratch.file("volume"));
    let install = |program: &std::path::Path| {
        Command::new(program).arg("install").arg(&directory).output().unwrap()
    };
    let program = std::path::Path::new(built::lockkeeper());
    let missing = install(program);
    assert_eq!(missing.status.code(), Some(73), "{missing:?}");
    let text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(text.contains("can't be copied to") && text.contains("No such file"), "{text}");

    std::fs::create_dir(&directory).unwrap();
    let copy = directory.join("lockkeeper");
    for by in [program, program, &copy, &copy] {
        let installed = install(by);
        assert!(installed.status.success(), "{installed:?}");
        let version = Command::new(&copy).arg("--version").output().unwrap();
        assert!(version.stdout.starts_with(b"lockkeeper "), "{version:?}");
        assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "nothing else is left");
}
