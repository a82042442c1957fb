//! The lines that the prover and a driver exchange: one JSON request a line, one JSON answer a
//! line, in order. See `process` for how a driver is started and stopped.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::history::Verb;

/// A request to a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// What to do.
    #[serde(rename = "do")]
    pub verb: Verb,
    /// The name of the lock.
    pub lock: String,
    /// Acquire: how long to wait for a slot, in milliseconds. 0: do not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Resize: the number of slots that the lock must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

/// What a driver writes: the answer to the oldest unanswered request, or a notification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The operation was done.
    Ok(Done),
    /// The operation was certainly not done, for this reason. `full`: no slot was free in
    /// time. `unsupported`: the driver does not offer the operation.
    Fail(String),
    /// The operation may have been done. The reason is for people.
    Info(String),
    /// Not an answer: the process no longer holds its slot, for this reason.
    Lost(String),
}

/// Reason for an acquire that found no free slot in time.
pub const FULL: &str = "full";

/// Reason for an operation that the driver does not support.
pub const UNSUPPORTED: &str = "unsupported";

/// Details of an operation that was done. All are optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    /// Acquire: the slot, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Acquire: the id of the token, in protocol Token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Acquire: the fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Verify: held, but the slot is being removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Count: the number of slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

/// Returns the JSON Schema of both kinds of lines. `docs/driver.schema.json` is a copy of it.
///
/// # Errors
///
/// None in practice: the schema is a constant.
pub fn schema() -> serde_json::Result<String> {
    let mut generator = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    let request = generator.subschema_for::<Request>();
    let line = generator.subschema_for::<Line>();
    let schema = serde_json::json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line between lockkeeper-prove and a driver",
        "oneOf": [request, line],
        "$defs": generator.take_definitions(true),
    });
    Ok(serde_json::to_string_pretty(&schema)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_schema_is_up_to_date() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/driver.schema.json");
        let documented = std::fs::read_to_string(file).unwrap_or_default();
        let how = "run: cargo run -p lockkeeper-prove -- schema > docs/driver.schema.json";
        assert_eq!(documented, schema().unwrap(), "{how}");
    }
}
