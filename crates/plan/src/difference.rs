//! The differences between an object's desired and its observed state, for users and
//! programs.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// One difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The part that differs, for example `slots`.
    pub what: &'static str,
    /// Its observed state. Null if it does not exist.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub before: Value,
    /// Its desired state. Null if it must not exist.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub after: Value,
}

/// What happens to the part that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It is created.
    Added,
    /// It is changed.
    Changed,
    /// It is removed.
    Removed,
}

impl Difference {
    /// Creates a difference. Null stands for a state without the part.
    pub fn new(what: &'static str, before: impl Into<Value>, after: impl Into<Value>) -> Self {
        Self { what, before: before.into(), after: after.into() }
    }

    /// A missing part that is created.
    pub fn added(what: &'static str, after: impl Into<Value>) -> Self {
        Self::new(what, Value::Null, after)
    }

    /// A part that is removed.
    pub fn removed(what: &'static str, before: impl Into<Value>) -> Self {
        Self::new(what, before, Value::Null)
    }

    /// Returns what happens to the part.
    #[must_use]
    pub fn sign(&self) -> Sign {
        match (self.before.is_null(), self.after.is_null()) {
            (true, _) => Sign::Added,
            (false, true) => Sign::Removed,
            (false, false) => Sign::Changed,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let (what, before, after) = (self.what, text(&self.before), text(&self.after));
        match self.sign() {
            Sign::Added => write!(f, "+ {what}: {after}"),
            Sign::Removed => write!(f, "- {what}: {before}"),
            Sign::Changed => write!(f, "~ {what}: {before} -> {after}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_one_line_for_users_and_omits_what_does_not_exist_in_json() {
        for (difference, line, json) in [
            (Difference::added("slots", 3), "+ slots: 3", r#"{"what":"slots","after":3}"#),
            (
                Difference::new("state", "Open", "Closed"),
                "~ state: Open -> Closed",
                r#"{"what":"state","before":"Open","after":"Closed"}"#,
            ),
            (
                Difference::removed("stray slots", vec![4, 7]),
                "- stray slots: [4,7]",
                r#"{"what":"stray slots","before":[4,7]}"#,
            ),
        ] {
            assert_eq!(difference.to_string(), line);
            assert_eq!(serde_json::to_string(&difference).unwrap(), json);
        }
    }
}
