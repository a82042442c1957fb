//! The failure of a command: its exit code and its message.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Failure of a command: an exit code, from sysexits unless a child process or a signal
/// determined it, and a message with the next step.
#[derive(Debug)]
pub struct Failure {
    pub(super) code: u8,
    pub(super) message: Option<String>,
}

impl Failure {
    /// A manifest is invalid, or can't be applied.
    pub const INVALID: u8 = 1;
    /// Invalid usage or input (EX_USAGE).
    pub const USAGE: u8 = 64;
    /// An element exceeds the maximum length (EX_DATAERR).
    pub const DATA: u8 = 65;
    /// A server is unreachable or rejects the request (EX_UNAVAILABLE).
    pub const UNAVAILABLE: u8 = 69;
    /// A file could not be written (EX_CANTCREAT).
    pub const CANT_CREATE: u8 = 73;
    /// Standard input could not be read (EX_IOERR).
    pub const CANT_READ: u8 = 74;
    /// No slot, role, capacity or element of a queue became available (EX_TEMPFAIL): try
    /// again later.
    pub const NOT_ACQUIRED: u8 = 75;
    /// The user lacks the required permission (EX_NOPERM).
    pub const NOT_PERMITTED: u8 = 77;
    /// The lock was lost while it was held. Outside sysexits, so that it can't be
    /// mistaken for another failure.
    pub const LOST: u8 = 80;
    /// The semaphore, the queue or the state file does not exist. This code and the following ones are errors
    /// of the protocol, outside sysexits as well.
    pub const DOES_NOT_EXIST: u8 = 81;
    /// The queue exists already, or a state file of a hold that has not ended.
    pub const ALREADY_EXISTS: u8 = 82;
    /// The queue is closed: no more elements may be put.
    pub const CLOSED: u8 = 83;
    /// The queue is damaged.
    pub const DAMAGED: u8 = 84;
    /// Elements were moved to the queue for dead letters.
    pub const DEAD_LETTERS: u8 = 85;

    /// The command exists but can't be run, as in shells.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// The command was not found, as in shells.
    pub const NOT_FOUND: u8 = 127;

    /// The reader of standard output has ended, as after SIGPIPE in shells.
    pub const NO_READER: u8 = 141;

    /// Creates a failure with this exit code and message.
    #[must_use]
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()) }
    }

    /// Creates a failure with only an exit code, including 0. The reason was already
    /// reported.
    #[must_use]
    pub fn silent(code: u8) -> Self {
        Self { code, message: None }
    }

    /// The failure to start this program, as in shells.
    pub(super) fn not_started(program: &OsStr, error: &io::Error) -> Self {
        let program = program.to_string_lossy();
        let is_line = program.contains(|c: char| c.is_whitespace() || "&|;<>$".contains(c));
        match error.kind() {
            io::ErrorKind::NotFound if is_line => {
                let message = format!(
                    "{program}: command not found; it is run as one program, not by a shell: use sh -c '...'"
                );
                Self::new(Self::NOT_FOUND, message)
            }
            io::ErrorKind::NotFound => {
                Self::new(Self::NOT_FOUND, format!("{program}: command not found"))
            }
            _ => Self::new(Self::NOT_EXECUTABLE, format!("{program}: {error}")),
        }
    }

    /// Exit code for the status of a process, as in shells.
    pub(super) fn of_status(status: ExitStatus) -> u8 {
        match (status.code(), status.signal()) {
            (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
            (None, Some(signal)) => Self::signalled(signal),
            (None, None) => u8::MAX,
        }
    }

    /// Exit code of a process that was ended by this signal, as in shells.
    pub(super) fn signalled(signal: i32) -> u8 {
        u8::try_from(128 + signal).unwrap_or(u8::MAX)
    }
}
