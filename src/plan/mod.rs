//! What should happen, as values. Wishes (what a resource asks for) and
//! observations (what a server has) go in; effects and things to report come
//! out. Nothing here is async, reads a clock, or knows Kubernetes, RabbitMQ's or
//! Redis's client: that is what makes every decision testable on its own, and
//! lets the client library build without Kubernetes.

pub mod connection;
pub mod naming;
pub mod pressure_queue;
pub mod quota;
pub mod record;
pub mod semaphore;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What an error means for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Trying again changes nothing: a person or a pipeline must change the
    /// resource, its Secret, or what stands in the way on the server.
    Invalid,
    /// Something that ends by itself (a busy mutex, a role in use): look again
    /// after this long.
    Waiting(Duration),
    /// A server, a network or a moment: try again with growing pauses.
    Transient,
}

/// Whether who acts may still act: asked right before each effect on a server, so that
/// a process that slept through the end of its right does nothing when it wakes up
/// (hazard K2). By default it always may.
#[derive(Clone)]
pub struct MayAct(Arc<dyn Fn() -> bool + Send + Sync>);

impl MayAct {
    /// As long as `may` says so, which must be quick.
    #[must_use]
    pub fn when(may: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(may))
    }

    /// Whether it may act now.
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

/// Text from elsewhere (a client's name for itself, a server's error) made fit
/// for a status field, an event or a log line: control characters become
/// spaces, and what exceeds `max_bytes` is cut at a character's boundary and
/// marked with `…`.
///
/// Such text is whatever an attacker likes (hazard K8), so everything foreign
/// goes through here before it leaves the process.
#[must_use]
pub fn clean_text(text: &str, max_bytes: usize) -> String {
    const MARK: &str = "…";
    let mut clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_loses_control_characters_and_its_excess() {
        assert_eq!(clean_text("a\nb\u{1b}[31mc", 100), "a b [31mc");
        assert_eq!(clean_text("ééééé", 8), "éé…");
        assert_eq!(clean_text("short", 5), "short");
    }
}
