//! `lockkeeper exec`: runs a command while holding a lock. This file has the arguments,
//! and the steps before and after the command. See `running` for the time while it runs,
//! `guardian` for the process that ends the command if this process can't, and `starter`
//! for the one that becomes the command.

mod environment;
mod guardian;
mod on_lost;
mod outcome;
mod pipes;
mod running;
mod starter;
mod terminal;

use std::ffi::OsString;

use clap::Parser;
use lockkeeper_semaphore::until_ended;
use tracing::{Instrument, debug_span};

use self::outcome::Outcome;
use self::running::Guardian;
use super::acquire::{Acquire, GIVEN_UP};
use super::common::runtime;
use super::failure::Failure;
use super::signals::Signals;
use super::target::LockTarget;
use super::telemetry::{self, LogFormat};

/// Arguments of `lockkeeper exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: that of the command; 128+n if signal n ended it; 126 the command can't be run; 127 \
the command was not found; 64 invalid usage, or a lock of another protocol; 69 the broker is unreachable or rejects the user, or a limit on processes \
or descriptors is reached; 75 (or -E) no slot became available in time; 80 the lock was lost while the command \
ran; 81 there is no such semaphore. If the broker becomes unreachable while exec waits for the lock, exec reconnects until --timeout \
expires. If the lock is deleted then, exec waits until it is created again.

The environment of the command has LOCK_NAME, LOCK_HOLDER_ID, LOCK_SLOT (not for a mutex or a \
token), LOCK_TOKEN_ID (for a token that Lockkeeper published) and LOCK_TOKEN (the fencing token, \
if the lock has fencing). `lockkeeper verify` in the command asks whether the lock is still held.

The command is its first process and all that descend from it, in whatever process group or \
session. All of them get the signals that exec gets, and all are ended when the lock is lost, or \
if the first one ends after a signal that asks to end. What a command leaves behind at its \
own end is reported and runs on. Processes of another user, for example of sudo, can only be \
ended by a privileged exec, which names them otherwise.")]
pub struct Arguments {
    #[command(flatten)]
    target: LockTarget,

    #[command(flatten)]
    acquire: Acquire,

    #[command(flatten)]
    outcome: Outcome,

    /// Command and its arguments; they are not interpreted by a shell
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None)]
    command: Vec<OsString>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Must come first: a thread started earlier would still allow the terminal to stop
    // the process.
    terminal::unstoppable();
    let mut signals = Signals::forwarded()?;
    let _telemetry = telemetry::start(LogFormat::Text);
    // Several threads, because nothing may delay a heartbeat.
    let runtime = runtime()?;
    let span = debug_span!("exec");
    telemetry::continue_trace(&span);
    let result = runtime.block_on(exec(arguments, &mut signals).instrument(span));
    // The end of the process frees the rest.
    runtime.shutdown_background();
    result
}

async fn exec(arguments: &Arguments, signals: &mut Signals) -> Result<(), Failure> {
    let start = async {
        let guardian = Guardian::start(&arguments.command, &arguments.outcome).await?;
        match arguments.acquire.take(&arguments.target).await {
            Ok(acquired) => Ok((guardian, acquired)),
            Err(failure) => {
                guardian.dismiss().await;
                Err(failure)
            }
        }
    };
    let (guardian, (found, client, permit)) = tokio::select! {
        started = start => started?,
        signal = signals.next_to_end() => {
            until_ended(GIVEN_UP).await;
            let message = format!("stopped by {signal} while waiting for the lock");
            return Err(Failure::new(Failure::signalled(signal as i32), message));
        }
    };
    let code = running::run(guardian, &arguments.outcome, &found, permit, signals).await?;
    client.close().await;
    Err(Failure::silent(code))
}

/// A process that `exec` starts for itself. Not among the subcommands: users have no use for
/// them, and the whole command line need not be read.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper")]
enum Internal {
    Guardian(guardian::Arguments),
    Starter(starter::Arguments),
}

/// Runs this process as a part of an `exec`, if it was started as one.
pub(super) fn as_a_part() -> Option<Result<(), Failure>> {
    let verb = std::env::args_os().nth(1)?;
    if verb != "guardian" && verb != "starter" {
        return None;
    }
    Some(match Internal::try_parse() {
        Ok(Internal::Guardian(arguments)) => guardian::run(&arguments),
        Ok(Internal::Starter(arguments)) => starter::run(&arguments).map(|never| match never {}),
        Err(error) => Err(Failure::new(Failure::USAGE, error.to_string())),
    })
}
