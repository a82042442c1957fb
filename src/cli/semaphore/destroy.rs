//! `lockkeeper semaphore destroy`: no semaphore any more.

use std::io::{IsTerminal, Write, stderr, stdin};

use tokio_util::sync::CancellationToken;

use super::{Failure, SlotWish, Which, failed, say, slots};

/// Arguments of `lockkeeper semaphore destroy`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,

    /// Don't ask
    #[arg(long, short, help_heading = None)]
    yes: bool,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.which.find_to_change().await?;
    let name = &target.found.name;
    if !arguments.yes {
        let seen = target.look().await?;
        let question = format!(
            "Destroy the semaphore {name} ({} slots, {} held)?",
            slots(&seen),
            seen.held.len()
        );
        if !confirmed(&question).await? {
            return Err(Failure::new(Failure::NOT_ACQUIRED, "nothing was changed"));
        }
    }
    let done = target
        .broker
        .destroy(name, SlotWish::new(0), None, &CancellationToken::new())
        .await
        .map_err(|error| failed(&error))?;
    say(format!(
        "{name} is gone with {} slots, {} of them held",
        done.deleted,
        done.seen.held.len()
    ));
    Ok(())
}

async fn confirmed(question: &str) -> Result<bool, Failure> {
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
