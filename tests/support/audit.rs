//! The API server's audit log: every request of a test run, with the bodies of
//! what was written about this project's kinds and about events.

#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::io::{Read, Seek, SeekFrom};

use serde_json::Value;

use crate::environment::variable;

/// The account of every operator in the tests: the chart's.
pub const OPERATOR: &str = "system:serviceaccount:lockkeeper-system:lockkeeper";

/// One request.
pub struct Request {
    /// The entry as it is in the log.
    pub line: String,
    entry: Value,
}

impl Request {
    fn parse(line: &str) -> Self {
        let entry = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        Self { line: line.to_owned(), entry }
    }

    fn text(&self, pointer: &str) -> &str {
        self.entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether an operator made it.
    pub fn is_by_an_operator(&self) -> bool {
        self.text("/user/username") == OPERATOR
    }

    /// Whether it asked for a change.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb(), "get" | "list" | "watch")
    }

    /// get, list, watch, create, update, patch, delete.
    pub fn verb(&self) -> &str {
        self.text("/verb")
    }

    /// Plural name, with the subresource: `semaphores/status`.
    pub fn resource(&self) -> String {
        let resource = self.text("/objectRef/resource");
        match self.text("/objectRef/subresource") {
            "" => resource.to_owned(),
            subresource => format!("{resource}/{subresource}"),
        }
    }

    /// Its API group; empty for the core.
    pub fn group(&self) -> &str {
        self.text("/objectRef/apiGroup")
    }

    /// The namespace, where there is one.
    pub fn namespace(&self) -> &str {
        self.text("/objectRef/namespace")
    }

    /// The HTTP status of the answer; 0 where there is none.
    pub fn code(&self) -> u64 {
        self.entry.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default()
    }

    /// Whether the account has the right to do this.
    pub fn is_authorized(&self) -> bool {
        self.entry
            .pointer("/annotations/authorization.k8s.io~1decision")
            .and_then(Value::as_str)
            .is_none_or(|decision| decision == "allow")
    }

    /// What the API server said where it refused.
    pub fn refusal(&self) -> &str {
        self.text("/responseStatus/message")
    }
}

/// How long the log is now.
pub fn length() -> u64 {
    std::fs::metadata(path()).unwrap().len()
}

/// Every finished request in the log from a place on: each is written before it
/// is answered.
pub fn since(place: u64) -> Vec<Request> {
    let mut file = std::fs::File::open(path()).unwrap();
    file.seek(SeekFrom::Start(place)).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    // The last line may be half written.
    let complete = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let text = std::str::from_utf8(&bytes[..complete]).unwrap();
    text.lines().map(Request::parse).collect()
}

fn path() -> String {
    format!("{}/audit.log", variable("LOCKKEEPER_DEV_DIR"))
}
