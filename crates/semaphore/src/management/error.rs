//! Why the management API gave no answer. See `answer` for how an answer is read.

use lockkeeper_plan::clean_text;

use super::answer::NoAnswer;

/// Maximum length of a text taken from the API, and of its address, in bytes.
const MAX_TEXT: usize = 512;

/// The management API gave no answer that can be used. The API only adds facts, so no
/// lock is affected. Cheap to clone, because one failed request is reported to all tasks
/// that waited for it. Contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("the management API at {url} is unusable: {why}")]
pub struct ManagementError {
    /// The address of the API, as configured.
    pub url: String,
    /// The cause, and what to check.
    pub why: String,
}

impl ManagementError {
    pub(super) fn new(url: &str, why: &str) -> Self {
        Self { url: clean_text(url, MAX_TEXT), why: clean_text(why, MAX_TEXT) }
    }

    /// Converts the failure of a request for a list. A list exists wherever the API
    /// belongs to the virtual host's broker, so a 404 does not mean that it is empty.
    pub(super) fn no_list(url: &str, failure: &NoAnswer) -> Self {
        Self::new(
            url,
            match failure {
                NoAnswer::NotFound => {
                    "it answers with status 404: check the URL, and that it is the API of the broker that has the virtual host"
                }
                NoAnswer::Because(why) => why,
            },
        )
    }
}
