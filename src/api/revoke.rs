//! The annotation `lockkeeper.dev/revoke`: the order to take a slot from its holder,
//! as JSON. Who carries it out, and how, is the operator's.

use serde::{Deserialize, Serialize};

use crate::plan::clean_text;

/// What the annotation says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeRequest {
    /// The slot; absent in protocol Token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The holder's id, as status shows it. Nothing is done where somebody else holds
    /// the slot by then.
    pub holder: String,
    /// What the holder and the Event are told.
    #[serde(default)]
    pub reason: String,
    /// Also where the holder's connection has other things, which go with it.
    #[serde(default)]
    pub force: bool,
    /// When it was asked for, in RFC 3339; the Event repeats it.
    #[serde(default)]
    pub at: String,
}

impl RevokeRequest {
    /// From the annotation's text. Every text in it is cleaned and cut; the id as
    /// status has it.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words.
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
