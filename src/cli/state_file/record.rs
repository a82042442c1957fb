//! What a state file says about a hold: the lock, its state, and where its process is.

use std::fs;
use std::io::{self, ErrorKind};

use lockkeeper_semaphore::Permit;
use nix::unistd::gethostname;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use crate::cli::asking::connect_to_own;
use crate::cli::target::FoundLock;

/// The state of a hold, as its process wrote it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum State {
    /// The lock is not held yet.
    Waiting,
    Held,
    /// Held, but its slot was removed.
    Draining,
    Lost,
    Released,
}

/// The machine and the container of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Place {
    host: String,
    /// Differs after each start of the machine.
    pub boot_id: String,
    /// The sockets of a network namespace are visible only in it.
    pub network_namespace: String,
}

impl Place {
    fn here() -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/net").unwrap_or_default();
        Self {
            host: gethostname().unwrap_or_default().to_string_lossy().into_owned(),
            boot_id: boot_id.trim().to_owned(),
            network_namespace: namespace.to_string_lossy().into_owned(),
        }
    }
}

/// The contents of a file. The names are part of the interface, as documented in
/// docs/exec.md.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct Record {
    pub state: State,
    /// Why the lock is draining, was lost or released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lock_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    acquired: Option<String>,
    pub pid: u32,
    #[serde(flatten)]
    pub(super) place: Place,
    /// The socket for questions. Its name also identifies the hold.
    pub socket: String,
}

/// The process of a hold.
pub(in crate::cli) enum Process {
    /// It is alive.
    Here(UnixStream),
    /// It has ended.
    Ended,
    /// It is or was on another machine, or in another container.
    Elsewhere,
    /// It does not answer.
    Silent(io::Error),
}

impl Record {
    /// Creates the record of a process that does not hold its lock yet.
    pub fn waiting(socket: &str) -> Self {
        Self {
            state: State::Waiting,
            reason: None,
            lock_name: None,
            slot: None,
            token_id: None,
            fencing_token: None,
            holder_id: None,
            identity: None,
            acquired: None,
            pid: std::process::id(),
            place: Place::here(),
            socket: socket.to_owned(),
        }
    }

    /// Records that the lock is held.
    pub fn hold(&mut self, found: &FoundLock, permit: &Permit, identity: Option<String>) {
        self.state = State::Held;
        self.lock_name = Some(found.name.as_str().to_owned());
        self.slot = permit.slot();
        self.token_id = permit.token_id();
        self.fencing_token = permit.fence();
        self.holder_id = Some(permit.id().to_owned());
        self.identity = identity;
        self.acquired = Some(jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    }

    /// Returns the name of the lock for messages.
    pub fn lock(&self) -> &str {
        self.lock_name.as_deref().unwrap_or("the lock")
    }

    /// Returns the socket for the request to release.
    pub fn release_socket(&self) -> String {
        release_socket(&self.socket)
    }

    /// Connects to this socket of the process, which listens as long as it is alive. Its pid
    /// is not used: it may be another process's by now.
    pub fn connect(&self, socket: &str) -> Process {
        let here = Place::here();
        let restarted = self.place.host == here.host && self.place.boot_id != here.boot_id;
        if self.place != here && !restarted {
            return Process::Elsewhere;
        }
        match connect_to_own(socket) {
            Ok(stream) => Process::Here(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Process::Ended,
            Err(error) => Process::Silent(error),
        }
    }

    /// Says where the process is, if that is elsewhere.
    pub fn elsewhere(&self) -> String {
        format!(
            "its process {} is of {}, in another container or on another machine",
            self.pid, self.place.host
        )
    }

    /// Says that the process does not answer.
    pub fn silent(&self, error: &io::Error) -> String {
        format!("its process {} does not answer ({error})", self.pid)
    }

    /// Says why the hold has ended, if its process has.
    pub fn end(&self) -> String {
        match (self.state, &self.reason) {
            (State::Lost | State::Released, Some(reason)) => reason.clone(),
            (State::Waiting, _) => "its process ended while it waited for the lock".to_owned(),
            _ => "its process was killed".to_owned(),
        }
    }
}

/// Returns the name of the socket for the request to release, next to the one for questions.
pub(in crate::cli) fn release_socket(socket: &str) -> String {
    format!("{socket}-release")
}
