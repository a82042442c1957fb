//! `lockkeeper exec`: runs a command while holding a lock. This file has the arguments,
//! and the steps before and after the command. See `running` for the time while it runs,
//! and `guardian` for the process that ends the command if this process can't.

mod asking;
mod fate;
mod group;
mod guardian;
mod pipes;
mod running;
mod terminal;

use std::ffi::OsString;

use tracing::{Instrument, debug_span};

pub(super) use asking::{Answer, SOCKET, ask};
pub use guardian::Arguments as GuardianArguments;
pub(super) use guardian::run as guard;

use self::fate::Fate;
use super::acquire::{Acquire, GIVEN_UP};
use super::failure::Failure;
use super::signals::{FORWARDED, Signals};
use super::target::LockTarget;
use super::telemetry::{self, LogFormat};
use crate::semaphore::until_ended;

/// Arguments of `lockkeeper exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: that of the command; 128+n if signal n ended it; 126 the command can't be run; 127 \
the command was not found; 64 invalid usage; 69 the broker is unreachable or rejects the user; 75 \
no slot became available in time; 80 the lock was lost while the command ran. If the broker \
becomes unreachable while exec waits for the lock, exec reconnects until --timeout expires.

The environment of the command has LOCK_NAME, LOCK_HOLDER_ID, LOCK_SLOT (not for a mutex or a \
token), LOCK_TOKEN_ID (for a token that Lockkeeper published) and LOCK_TOKEN (the fencing token, \
if the lock has fencing). `lockkeeper verify` in the command asks whether the lock is still held. The \
command runs in its own process group. Signals are sent to this \
group, and it is ended when the lock is lost. Processes that leave the group are not ended. \
Processes of another user, for example sudo, can only be ended by a privileged exec.")]
pub struct Arguments {
    #[command(flatten)]
    target: LockTarget,

    #[command(flatten)]
    acquire: Acquire,

    #[command(flatten)]
    fate: Fate,

    /// Command and its arguments; they are not interpreted by a shell
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None)]
    command: Vec<OsString>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Must come first: a thread started earlier would still allow the terminal to stop
    // the process.
    terminal::unstoppable();
    let mut signals = Signals::listen(&FORWARDED)?;
    let _telemetry = telemetry::start(LogFormat::Text);
    // Several threads, because nothing may delay a heartbeat.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    let span = debug_span!("exec");
    telemetry::continue_trace(&span);
    let result = runtime.block_on(exec(arguments, &mut signals).instrument(span));
    // The end of the process frees the rest.
    runtime.shutdown_background();
    result
}

async fn exec(arguments: &Arguments, signals: &mut Signals) -> Result<(), Failure> {
    let (found, client, permit) = tokio::select! {
        acquired = arguments.acquire.take(&arguments.target) => acquired?,
        signal = signals.next_to_end() => {
            until_ended(GIVEN_UP).await;
            let message = format!("stopped by {signal} while waiting for the lock");
            return Err(Failure::new(Failure::signalled(signal as i32), message));
        }
    };
    let code = running::run(&arguments.command, &arguments.fate, &found, permit, signals).await?;
    client.close().await;
    Err(Failure::silent(code))
}
