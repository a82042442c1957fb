//! `lockkeeper exec`: runs a command while holding a lock. Here: its arguments
//! and what comes before and after the command. What happens while it runs is
//! `running`'s; who ends it if this process can't is the guardian.

mod group;
mod guardian;
mod running;
mod terminal;

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use tracing::{Instrument, debug_span};

pub use guardian::Arguments as GuardianArguments;
pub(super) use guardian::run as guard;

use self::group::OnLost;
use super::acquire::Acquire;
use super::signals::{FORWARDED, Signals};
use super::target::Target;
use super::telemetry::{self, LogFormat};
use super::{Failure, duration};

/// Arguments of `lockkeeper exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: the command's own, 128+n if signal n ended it, 127 if it was not found, 126 if it can't \
be run. 64 wrong usage, 69 the broker can't be reached, 75 the lock was not free, 80 the lock was \
lost while the command ran.

The command finds LOCK_NAME, LOCK_HOLDER_ID, LOCK_SLOT (not for a mutex or a token), LOCK_TOKEN_ID \
(of a token that Lockkeeper published) and LOCK_TOKEN (the fencing token, if the lock has them) in \
its environment. It runs in a process group of its own, which is what signals go to and what is \
ended when the lock is lost: a process that leaves the group is not found.")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    acquire: Acquire,

    #[command(flatten)]
    fate: Fate,

    /// The command and its arguments; no shell reads them
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None)]
    command: Vec<OsString>,
}

/// What becomes of the command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What becomes of the command")]
struct Fate {
    /// The time between TERM and KILL; at most a third of the time that a proof of the lock lasts
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    kill_after: Duration,

    /// What to do when the semaphore was made smaller: let the command finish, or end it
    #[arg(long, value_enum, default_value_t = OnDrain::Finish)]
    on_drain: OnDrain,

    /// What to do when the lock is lost: terminate (TERM, then KILL), kill, signal=USR1 (or
    /// another), or warn
    #[arg(long, value_name = "WHAT", default_value_t = OnLost::Terminate)]
    on_lost: OnLost,
}

/// What to do when the held slot was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnDrain {
    /// The command goes on; nobody else gets the slot before
    Finish,
    /// The command gets TERM, then KILL
    Stop,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let _telemetry = telemetry::start(LogFormat::Text);
    terminal::unstoppable();
    // A heartbeat must not wait for anything else, so not one thread alone.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    let span = debug_span!("exec");
    telemetry::continue_trace(&span);
    let result = runtime.block_on(exec(arguments).instrument(span));
    // Nobody waits for what a cancelled acquisition still has to do: the end of the
    // process frees all of it.
    runtime.shutdown_background();
    result
}

async fn exec(arguments: &Arguments) -> Result<(), Failure> {
    let mut signals = Signals::listen(&FORWARDED)
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    let (found, client, permit) = tokio::select! {
        acquired = arguments.acquire.take(&arguments.target) => acquired?,
        signal = signals.next_to_end() => {
            let message = format!("stopped by {signal} while waiting for the lock");
            return Err(Failure::new(Failure::signalled(signal as i32), message));
        }
    };
    let code = running::run(arguments, &found, permit, &mut signals).await?;
    client.close().await;
    Err(Failure::silent(code))
}

/// Says something on standard error. A reader that has stopped reading must not
/// delay what is to be done: it is waited for only a moment.
async fn say(text: String) {
    let line = format!("lockkeeper: {text}\n");
    let (done, said) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stderr().write_all(line.as_bytes());
        let _ = done.send(());
    });
    let _ = tokio::time::timeout(Duration::from_millis(100), said).await;
}
