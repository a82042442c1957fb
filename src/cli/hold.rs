//! `lockkeeper hold`: acquires a lock, holds it until a signal, then releases it.

use tracing::{Instrument, Span, debug_span, field};

use super::acquire::Acquire;
use super::failure::Failure;
use super::signals::{INTERRUPTING, Signals};
use super::target::{FoundLock, LockTarget};
use super::telemetry::{self, LogFormat};
use crate::semaphore::Permit;

/// Arguments of `lockkeeper hold`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    target: LockTarget,

    #[command(flatten)]
    acquire: Acquire,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut signals = Signals::listen(&INTERRUPTING)?;
    let _telemetry = telemetry::start(LogFormat::Text);
    // Several threads, because nothing may delay a heartbeat.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    let span = debug_span!("hold");
    telemetry::continue_trace(&span);
    let hold = async {
        let (found, client, permit) = tokio::select! {
            acquired = arguments.acquire.take(&arguments.target) => acquired?,
            _ = signals.next() => {
                let message = "stopped while waiting for the lock";
                return Err(Failure::new(Failure::NOT_ACQUIRED, message));
            }
        };
        let what = found.what(permit.slot());
        println!("holding {what}");
        let holding = held(&found, &permit);
        tokio::select! {
            why = lost(&permit, &found) => {
                holding.record("lock.lost", &why);
                let message = format!("{what} was lost: {why}. Stop the guarded work");
                Err(Failure::new(Failure::LOST, message))
            }
            _ = signals.next() => {
                // The lock was lost just now. Nothing is guarded any more in either case.
                drop(holding);
                let _ = permit.release().instrument(debug_span!("lock.release")).await;
                client.close().await;
                println!("released {what}");
                Ok(())
            }
        }
    };
    runtime.block_on(hold.instrument(span))
}

/// Returns the span for the time in which a lock is held.
pub(super) fn held(found: &FoundLock, permit: &Permit) -> Span {
    debug_span!(
        "lock.hold",
        lock.name = found.name.as_str(),
        lock.slot = permit.slot(),
        lock.lost = field::Empty,
    )
}

/// Waits until a held slot is lost. Returns the reason.
async fn lost(permit: &Permit, found: &FoundLock) -> String {
    tokio::select! {
        reason = permit.lost() => return reason.to_string(),
        () = permit.draining() => eprintln!("lockkeeper: {}", found.draining(permit.slot())),
    }
    permit.lost().await.to_string()
}
