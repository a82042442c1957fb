//! What all names have in common, and why a name is rejected.

use crate::{changes_display, clean_text};

/// Maximum length of a lock or queue name, in bytes. AMQP's own limit is 255, and
/// suffixes are added. `<namespace>.<name>` alone can reach 317, so defaulted names are
/// checked too.
pub const MAX_NAME_BYTES: usize = 200;

/// Why a name was rejected. The message contains the rule and the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {what} {name:?} can't be used: {rule}. Choose another {what}")]
pub struct NameError {
    what: &'static str,
    name: String,
    rule: String,
}

impl NameError {
    pub(super) fn new(name: &str, rule: impl Into<String>) -> Self {
        Self { what: "name", name: clean_text(name, 256), rule: rule.into() }
    }

    /// Says that it is about the prefix of a name.
    pub(super) fn of_prefix(self) -> Self {
        Self { what: "prefix", ..self }
    }
}

/// Checks what holds for names of locks and of queues.
pub(super) fn check_common(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::new(name, "it is empty"));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::new(
            name,
            format!(
                "it is {} bytes long, and at most {MAX_NAME_BYTES} are allowed (the default is <namespace>.<name>)",
                name.len()
            ),
        ));
    }
    if name.chars().any(changes_display) {
        return Err(NameError::new(name, "it contains a control character or an invisible one"));
    }
    Ok(())
}
