//! The API server's audit log: every request of a test run, with the bodies of
//! what was written about this project's kinds and about events.

#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;

use crate::environment::variable;

/// The account of every operator in the tests: the chart's.
pub const OPERATOR: &str = "system:serviceaccount:lockkeeper-system:lockkeeper";

/// One request.
pub struct Request {
    /// The entry as it is in the log.
    pub line: String,
    entry: Entry,
}

/// What is looked at of an entry; the rest of it, bodies above all, is long.
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

    /// Whether an operator made it.
    pub fn is_by_an_operator(&self) -> bool {
        self.entry.user.username == OPERATOR
    }

    /// Whether it asked for a change.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb(), "get" | "list" | "watch")
    }

    /// get, list, watch, create, update, patch, delete.
    pub fn verb(&self) -> &str {
        &self.entry.verb
    }

    /// Plural name, with the subresource: `semaphores/status`.
    pub fn resource(&self) -> String {
        let Object { resource, subresource, .. } = &self.entry.object_ref;
        if subresource.is_empty() { resource.clone() } else { format!("{resource}/{subresource}") }
    }

    /// Its API group; empty for the core.
    pub fn group(&self) -> &str {
        &self.entry.object_ref.api_group
    }

    /// How long after the request `from` came this one was answered.
    pub fn answered_after(&self, from: &Self) -> Duration {
        let from = from.entry.request_received_timestamp.0;
        self.entry.stage_timestamp.0.duration_since(from).unsigned_abs()
    }

    /// The namespace, where there is one.
    pub fn namespace(&self) -> &str {
        &self.entry.object_ref.namespace
    }

    /// The object's name, where there is one.
    pub fn name(&self) -> &str {
        &self.entry.object_ref.name
    }

    /// When it was answered, by the API server's clock, which is this machine's.
    pub fn answered(&self) -> jiff::Timestamp {
        self.entry.stage_timestamp.0
    }

    /// The object that was answered with, where bodies are kept.
    pub fn object(&self) -> serde_json::Value {
        let entry: serde_json::Value = serde_json::from_str(&self.line).unwrap();
        entry["responseObject"].clone()
    }

    /// The HTTP status of the answer; 0 where there is none.
    pub fn code(&self) -> u16 {
        self.entry.response_status.code
    }

    /// Whether the account has the right to do this.
    pub fn is_authorized(&self) -> bool {
        self.entry.annotations.decision.as_deref().is_none_or(|decision| decision == "allow")
    }

    /// What the API server said where it refused.
    pub fn refusal(&self) -> &str {
        &self.entry.response_status.message
    }
}

/// A place in the log, from which on it is read.
#[derive(Clone)]
pub struct Reader {
    place: u64,
}

impl Reader {
    /// From the start of the test run.
    pub fn from_the_start() -> Self {
        Self { place: 0 }
    }

    /// From now on.
    pub fn from_here() -> Self {
        Self { place: std::fs::metadata(path()).unwrap().len() }
    }

    /// The requests finished since the last time: each is in the log before it is
    /// answered.
    pub fn read(&mut self) -> Vec<Request> {
        let mut file = std::fs::File::open(path()).unwrap();
        // With the byte before, to see whether the place is in the middle of a line.
        let from = self.place.saturating_sub(1);
        file.seek(SeekFrom::Start(from)).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        let ends = |byte: &u8| *byte == b'\n';
        // Neither a line begun before nor one that is only half written.
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
