//! Decisions as pure functions. Inputs are the desired state (from a resource) and the
//! observed state (of a server). Outputs are effects and conditions. Nothing here is
//! async, reads a clock, or depends on Kubernetes or on the clients of RabbitMQ or Redis.
//! Every decision can therefore be tested on its own, and the client library builds
//! without Kubernetes.

pub mod connection;
pub mod difference;
pub mod naming;
pub mod pressure_queue;
pub mod quota;
pub mod record;
pub mod semaphore;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The class of an error, which determines the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// A retry can't succeed. The resource, its Secret or a conflicting object on the
    /// server must be changed first.
    Invalid,
    /// The condition ends by itself (a busy mutex, a role in use). Retry after this time.
    Waiting(Duration),
    /// A temporary error of a server or a network. Retry with growing pauses.
    Transient,
}

/// Guards every side effect. It is checked immediately before each effect on a server. A
/// process that was suspended beyond its lease then does nothing when it resumes (hazard
/// K2). By default it always allows effects.
#[derive(Clone)]
pub struct MayAct(Arc<dyn Fn() -> bool + Send + Sync>);

impl MayAct {
    /// Allows effects while `may` returns true. `may` must be fast.
    #[must_use]
    pub fn when(may: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(may))
    }

    /// Whether effects are allowed now.
    #[must_use]
    pub fn now(&self) -> bool {
        (self.0)()
    }
}

impl Default for MayAct {
    fn default() -> Self {
        Self::when(|| true)
    }
}

impl fmt::Debug for MayAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MayAct").field(&self.now()).finish()
    }
}

/// Sanitizes foreign text (a client's name for itself, a server's error) for a status
/// field, an event or a log line. Control characters, and invisible ones that reorder or
/// break text, become spaces. Text beyond `max_bytes` is truncated at a character boundary
/// and marked with `…`.
///
/// An attacker controls such text (hazard K8), so all foreign text must be sanitized here
/// before it leaves the process.
#[must_use]
pub fn clean_text(text: &str, max_bytes: usize) -> String {
    const MARK: &str = "…";
    let mut clean: String =
        text.chars().map(|c| if changes_display(c) { ' ' } else { c }).collect();
    if clean.len() > max_bytes {
        let mut end = max_bytes.saturating_sub(MARK.len());
        while !clean.is_char_boundary(end) {
            end -= 1;
        }
        clean.truncate(end);
        clean.push_str(MARK);
    }
    clean
}

/// Whether a character changes how the text around it is displayed: controls, and invisible
/// characters that reorder, break or mark text. Joiners are not among them, because words
/// and emoji need them.
#[must_use]
pub fn changes_display(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_loses_control_characters_and_its_excess() {
        assert_eq!(clean_text("a\nb\u{1b}[31mc", 100), "a b [31mc");
        let format = "\u{61c}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2060}\u{2066}\u{2069}\u{206f}\u{feff}\u{fff9}\u{e0041}";
        assert_eq!(clean_text(&format!("a{format}b"), 100), format!("a{}b", " ".repeat(15)));
        assert_eq!(clean_text("נעל قفل 👩‍🔧", 100), "נעל قفل 👩‍🔧", "letters of any direction");
        assert_eq!(clean_text("ééééé", 8), "éé…");
        assert_eq!(clean_text("short", 5), "short");
    }
}
