//! Scripts without `#!`: the kernel cannot start them. Shells, and `execvp` of the C library, let
//! `sh` run them, and so do `exec` and `queue run`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;

/// The shell that runs them.
const SHELL: &str = "/bin/sh";

/// Returns the shell with the script, if a program could not be started because it is one without
/// `#!`. Arguments and environment are still to be set.
pub(super) fn by_the_shell(program: &OsStr, error: &io::Error) -> Option<Command> {
    let script = without_interpreter(program, error)?;
    let mut shell = Command::new(SHELL);
    shell.arg(script);
    Some(shell)
}

fn without_interpreter(program: &OsStr, error: &io::Error) -> Option<PathBuf> {
    if error.raw_os_error() != Some(Errno::ENOEXEC as i32) {
        return None;
    }
    located(program, std::env::var_os("PATH"))
}

/// Returns the file that the name of a program means.
fn located(program: &OsStr, path: Option<OsString>) -> Option<PathBuf> {
    if Path::new(program).components().count() > 1 || program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let is_executable = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path?).map(|folder| folder.join(program)).find(is_executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_script_without_an_interpreter_is_left_to_the_shell() {
        let no_format = io::Error::from_raw_os_error(Errno::ENOEXEC as i32);
        let script = without_interpreter(OsStr::new("./-x"), &no_format);
        assert_eq!(script.as_deref(), Some(Path::new("./-x")));
        let missing = io::Error::from_raw_os_error(Errno::ENOENT as i32);
        assert_eq!(without_interpreter(OsStr::new("./x"), &missing), None);
        let path = || Some("/nowhere:/bin:/usr/bin".into());
        assert!(located(OsStr::new("sh"), path()).unwrap().is_absolute());
        assert_eq!(located(OsStr::new("no-such-program"), path()), None);
    }
}
