//! Asking whoever sits at the terminal before something is done that can't be
//! undone.

use std::io::{IsTerminal, Write, stderr, stdin};

use super::Failure;

/// Whether the answer is yes. Without a terminal nobody can be asked, and nothing
/// may be done.
pub(super) async fn confirmed(question: &str) -> Result<bool, Failure> {
    if !stdin().is_terminal() {
        return Err(Failure::new(Failure::USAGE, "nobody can be asked: give --yes"));
    }
    let _ = write!(stderr(), "{question} [y/N] ");
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.ok().and_then(Result::ok).unwrap_or_default();
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
