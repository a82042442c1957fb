//! Limits of this process, such as the maximum number of open files. A connection that
//! fails because of one says nothing about the server, so retrying it is useless.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use nix::errno::Errno;

/// Number of descriptors that a lookup of a host name needs at the same time.
const FOR_A_LOOKUP: usize = 2;

/// Returns the limit that caused this error of connecting, and how to raise it. `None` if
/// the error has another cause.
pub fn behind(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => Some(OPEN_FILES),
        Some(Errno::ENFILE) => Some(FILES_OF_THE_MACHINE),
        // Only the start of a thread fails in this way. Connecting waits instead.
        Some(Errno::EAGAIN) => Some(THREADS),
        // The resolver does not pass on why it could not open its files.
        None if error.to_string().contains("lookup") => at_limit_of_files(),
        Some(_) | None => None,
    }
}

/// Returns an error unless the threads of a connection can be started. lapin's thread panics
/// if it cannot start the others, and its connection then never answers.
pub fn check_threads() -> io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let start = |_| {
        let gate = Arc::clone(&gate);
        Builder::new().stack_size(STACK).spawn(move || drop(gate.lock()))
    };
    let started: Vec<io::Result<JoinHandle<()>>> = (0..OF_A_CONNECTION).map(start).collect();
    drop(closed);
    started.into_iter().try_for_each(|thread| {
        // It cannot panic.
        let _ = thread?.join();
        Ok(())
    })
}

/// Number of threads of a connection: lapin's, one for the lookup of the host name, and one
/// that the first connection of the process starts.
const OF_A_CONNECTION: u32 = 3;

/// Stack size of a thread that does nothing, in bytes.
const STACK: usize = 64 * 1024;

const OPEN_FILES: &str =
    "too many open files; raise the limit of this process, for example with ulimit -n";
const FILES_OF_THE_MACHINE: &str =
    "too many open files on this machine; raise its limit, fs.file-max";
const THREADS: &str = "no thread can be started; raise the limit of processes, for example with ulimit -u, or pids.max of the cgroup";

fn at_limit_of_files() -> Option<&'static str> {
    let opened: Result<Vec<File>, io::Error> =
        (0..FOR_A_LOOKUP).map(|_| File::open("/dev/null")).collect();
    opened.err().filter(|error| error.raw_os_error().is_some()).and_then(|error| behind(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_about_this_process_are_limits_of_it() {
        let of = |errno: Errno| behind(&io::Error::from_raw_os_error(errno as i32));
        assert_eq!(of(Errno::EMFILE), Some(OPEN_FILES));
        assert_eq!(of(Errno::ENFILE), Some(FILES_OF_THE_MACHINE));
        assert_eq!(of(Errno::EAGAIN), Some(THREADS));
        for errno in [Errno::ECONNREFUSED, Errno::ETIMEDOUT, Errno::EHOSTUNREACH] {
            assert_eq!(of(errno), None, "{errno}");
        }
        let lookup =
            io::Error::other("failed to lookup address information: Name or service not known");
        assert_eq!(behind(&lookup), None, "this process can open files");
    }
}
