//! The API server's audit log: every request of a test run, with the bodies of writes to
//! this project's kinds and of events.

use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;

use crate::environment::variable;

/// The account of every operator in the tests, which is the chart's.
pub const OPERATOR: &str = "system:serviceaccount:lockkeeper-system:lockkeeper";

/// One request.
pub struct Request {
    /// The entry as in the log.
    pub line: String,
    entry: Entry,
}

/// The used parts of an entry; the rest, above all bodies, is long.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: Object,
    #[serde(default)]
    response_status: Answer,
    #[serde(default)]
    annotations: Annotations,
    request_received_timestamp: MicroTime,
    stage_timestamp: MicroTime,
}

#[derive(Deserialize)]
struct User {
    /// Empty for a request with invalid credentials.
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Object {
    resource: String,
    subresource: String,
    api_group: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    code: u16,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "authorization.k8s.io/decision")]
    decision: Option<String>,
}

impl Request {
    fn parse(line: &str) -> Self {
        let entry = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        Self { line: line.to_owned(), entry }
    }

    /// Returns whether an operator made the request.
    pub fn is_by_an_operator(&self) -> bool {
        self.entry.user.username == OPERATOR
    }

    /// Returns whether the request is a change.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb(), "get" | "list" | "watch")
    }

    /// get, list, watch, create, update, patch, delete.
    pub fn verb(&self) -> &str {
        &self.entry.verb
    }

    /// Returns the plural name, with the subresource: `semaphores/status`.
    pub fn resource(&self) -> String {
        let Object { resource, subresource, .. } = &self.entry.object_ref;
        if subresource.is_empty() { resource.clone() } else { format!("{resource}/{subresource}") }
    }

    /// Returns the API group; empty for the core group.
    pub fn group(&self) -> &str {
        &self.entry.object_ref.api_group
    }

    /// Returns the time from the start of the request `from` to the end of this one.
    pub fn answered_after(&self, from: &Self) -> Duration {
        let from = from.entry.request_received_timestamp.0;
        self.entry.stage_timestamp.0.duration_since(from).unsigned_abs()
    }

    /// Returns the namespace, or an empty text.
    pub fn namespace(&self) -> &str {
        &self.entry.object_ref.namespace
    }

    /// Returns the object's name, or an empty text.
    pub fn name(&self) -> &str {
        &self.entry.object_ref.name
    }

    /// Returns the time when the API server got the request, by its clock, which is this
    /// machine's.
    pub fn received(&self) -> jiff::Timestamp {
        self.entry.request_received_timestamp.0
    }

    /// Returns the time of the response, by the API server's clock, which is this
    /// machine's.
    pub fn answered(&self) -> jiff::Timestamp {
        self.entry.stage_timestamp.0
    }

    /// Returns the object in the response, if bodies are logged.
    pub fn object(&self) -> serde_json::Value {
        let entry: serde_json::Value = serde_json::from_str(&self.line).unwrap();
        entry["responseObject"].clone()
    }

    /// Returns the HTTP status of the response, or 0 if there is none.
    pub fn code(&self) -> u16 {
        self.entry.response_status.code
    }

    /// Returns whether the account has the permission.
    pub fn is_authorized(&self) -> bool {
        self.entry.annotations.decision.as_deref().is_none_or(|decision| decision == "allow")
    }

    /// Returns the API server's message for a rejected request.
    pub fn refusal(&self) -> &str {
        &self.entry.response_status.message
    }
}

/// A position in the log from which it is read.
#[derive(Clone)]
pub struct Reader {
    place: u64,
}

impl Reader {
    /// Starts at the beginning of the test run.
    pub fn from_the_start() -> Self {
        Self { place: 0 }
    }

    /// Starts at the current end.
    pub fn from_here() -> Self {
        Self { place: std::fs::metadata(path()).unwrap().len() }
    }

    /// Returns the requests that finished since the last call. Each is in the log before
    /// it is answered.
    pub fn read(&mut self) -> Vec<Request> {
        let mut file = std::fs::File::open(path()).unwrap();
        // Includes the previous byte, to detect whether the position is inside a line.
        let from = self.place.saturating_sub(1);
        file.seek(SeekFrom::Start(from)).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        let ends = |byte: &u8| *byte == b'\n';
        // Skips a line that started before, and a line that is not complete yet.
        let Some(end) = bytes.iter().rposition(ends).map(|last| last + 1) else { return vec![] };
        let start = if self.place == 0 { 0 } else { bytes.iter().position(ends).unwrap() + 1 };
        self.place = from + u64::try_from(end).unwrap();
        let text = std::str::from_utf8(&bytes[start..end]).unwrap();
        text.lines().map(Request::parse).collect()
    }
}

fn path() -> String {
    format!("{}/audit.log", variable("LOCKKEEPER_DEV_DIR"))
}
