//! What happens to the command of `lockkeeper exec` when its lock ends, and messages about
//! it that never delay its handling.

use std::io::Write;
use std::time::Duration;

use super::group::OnLost;
use crate::cli::common::duration;

/// How the command is signalled and ended.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Command handling")]
pub(super) struct Fate {
    /// Time between TERM and KILL; at most a third of the lock's remaining validity when
    /// the command starts
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub kill_after: Duration,

    /// What to do if the semaphore is shrunk below the held slot: let the command finish,
    /// or stop it
    #[arg(long, value_enum, default_value_t = OnDrain::Finish)]
    pub on_drain: OnDrain,

    /// What to do if the lock is lost: terminate (TERM, then KILL), kill (KILL),
    /// signal=USR1 (or another signal), or warn (print a message)
    #[arg(long, value_name = "WHAT", default_value_t = OnLost::Terminate)]
    pub on_lost: OnLost,
}

/// What to do if the held slot is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OnDrain {
    /// Let the command finish; no other client gets the slot until then
    Finish,
    /// Send TERM to the command, then KILL
    Stop,
}

/// Prints a message to stderr. Waits only briefly, so that a stalled reader does not
/// delay the handling of the command.
pub(super) async fn say(text: String) {
    let line = format!("lockkeeper: {text}\n");
    let (done, said) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stderr().write_all(line.as_bytes());
        let _ = done.send(());
    });
    let _ = tokio::time::timeout(Duration::from_millis(100), said).await;
}
