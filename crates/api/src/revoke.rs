//! The annotation `lockkeeper.dev/revoke`: a request to revoke a holder's slot, as JSON.
//! See `operator::semaphore::revoking` for how it is handled.

use lockkeeper_plan::clean_text;
use serde::{Deserialize, Serialize};

/// Value of the annotation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeRequest {
    /// Number of the slot. Absent with protocol Token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Id of the holder, as in the status. The request is refused if another client holds
    /// the slot.
    pub holder: String,
    /// Reason, passed to the holder and recorded in the Event.
    #[serde(default)]
    pub reason: String,
    /// Revokes the slot even if the holder's connection has other resources, which are
    /// then lost as well.
    #[serde(default)]
    pub force: bool,
    /// Time of the request in RFC 3339 format, repeated in the Event.
    #[serde(default)]
    pub at: String,
}

impl RevokeRequest {
    /// Parses the value of the annotation. Removes control characters from the texts and
    /// truncates them, except the id.
    ///
    /// # Errors
    ///
    /// Returns a description of the problem.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Self { slot, holder, reason, force, at } =
            serde_json::from_str(text).map_err(|error| clean_text(&error.to_string(), 200))?;
        if holder.is_empty() {
            return Err("it names no holder".to_owned());
        }
        let reason = clean_text(reason.trim(), 150);
        Ok(Self { slot, holder, reason, force, at: clean_text(&at, 40) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_without_control_characters_and_without_guessing() {
        let request = RevokeRequest::parse(
            r#"{"slot": 3, "holder": "4fz7", "reason": "a\u001b[31mb", "at": "2026-01-02T03:04:05Z"}"#,
        )
        .unwrap();
        assert_eq!(
            (request.slot, request.holder.as_str(), request.force),
            (Some(3), "4fz7", false)
        );
        assert_eq!(request.reason, "a [31mb");
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(RevokeRequest::parse(&text), Ok(request));
        for wrong in ["", "3", "{}", r#"{"holder": ""}"#, r#"{"holder": "a", "slots": 3}"#] {
            RevokeRequest::parse(wrong).unwrap_err();
        }
        RevokeRequest::parse(r#"{"holder": "a", "slot": -1}"#).unwrap_err();
    }
}
