//! Limits of this process, such as the maximum number of open files. A connection that
//! fails because of one says nothing about the server, so retrying it is useless.

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

/// Checks that the threads and descriptors of an AMQP connection can be had. lapin's threads
/// panic if not, and their connection then never answers.
///
/// # Errors
///
/// There is no room for one of them.
pub fn check_connection() -> io::Result<()> {
    open_files(FILES_OF_A_CONNECTION)?;
    check_threads(THREADS_OF_A_CONNECTION)
}

/// Starts this number of threads at the same time, and ends them.
///
/// # Errors
///
/// There is no room for one.
pub fn check_threads(number: usize) -> io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let start = |_| {
        let gate = Arc::clone(&gate);
        Builder::new().stack_size(STACK).spawn(move || drop(gate.lock()))
    };
    let started: Vec<io::Result<JoinHandle<()>>> = (0..number).map(start).collect();
    drop(closed);
    started.into_iter().try_for_each(|thread| {
        // It cannot panic.
        let _ = thread?.join();
        Ok(())
    })
}

/// Number of threads of a connection: lapin's, one for the lookup of the host name, and one
/// that the first connection of the process starts.
const THREADS_OF_A_CONNECTION: usize = 3;

/// Number of descriptors of the first connection of the process: of its socket, which is
/// duplicated, and of the runtime below lapin.
const FILES_OF_A_CONNECTION: usize = 8;

/// Stack size of a thread that does nothing, in bytes.
const STACK: usize = 64 * 1024;

const OPEN_FILES: &str =
    "too many open files; raise the limit of this process, for example with ulimit -n";
const FILES_OF_THE_MACHINE: &str =
    "too many open files on this machine; raise its limit, fs.file-max";
const THREADS: &str = "no thread can be started; raise the limit of processes, for example with ulimit -u, or pids.max of the cgroup";

fn at_limit_of_files() -> Option<&'static str> {
    let error = open_files(FOR_A_LOOKUP).err()?;
    error.raw_os_error().and_then(|_| behind(&error))
}

/// Opens this number of descriptors at the same time, and closes them.
fn open_files(number: usize) -> io::Result<()> {
    // Pipes, with two descriptors each: a root directory may have no file to open, not even
    // /dev/null.
    let opened: io::Result<Vec<_>> = (0..number.div_ceil(2)).map(|_| io::pipe()).collect();
    opened.map(drop)
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
