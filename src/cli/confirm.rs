//! Asks the user at the terminal for confirmation of an operation that cannot be undone.

use std::io::{IsTerminal, Write, stderr, stdin};

use super::failure::Failure;

/// Asks the user for confirmation. Fails without a terminal, so that nothing is changed
/// unconfirmed.
pub(super) async fn confirmed(question: &str) -> Result<bool, Failure> {
    if !stdin().is_terminal() {
        return Err(Failure::new(Failure::USAGE, "a confirmation needs a terminal: give --yes"));
    }
    let _ = write!(stderr(), "{question} [y/N] ");
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.ok().and_then(Result::ok).unwrap_or_default();
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
