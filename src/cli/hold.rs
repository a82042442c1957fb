//! `lockkeeper hold`: takes a lock, holds it until a signal, gives it back.

use tracing::{Instrument, Span, debug_span, field};

use super::acquire::Acquire;
use super::target::{Found, Target};
use super::telemetry::{self, LogFormat};
use super::{Failure, signalled};
use crate::semaphore::Permit;

/// Arguments of `lockkeeper hold`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    acquire: Acquire,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let _telemetry = telemetry::start(LogFormat::Text);
    // One thread would do, but a heartbeat must not wait for anything else.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    let span = debug_span!("hold");
    telemetry::continue_trace(&span);
    let hold = async {
        let signal = signalled();
        tokio::pin!(signal);
        let (found, client, permit) = tokio::select! {
            acquired = arguments.acquire.take(&arguments.target) => acquired?,
            _ = &mut signal => {
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
                let message = format!("{what} was lost: {why}. Stop what it guards");
                Err(Failure::new(Failure::LOST, message))
            }
            _ = &mut signal => {
                // Lost just now: nothing is guarded any more either way.
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

/// The span that lasts while a lock is held.
pub(super) fn held(found: &Found, permit: &Permit) -> Span {
    debug_span!(
        "lock.hold",
        lock.name = found.name.as_str(),
        lock.slot = permit.slot(),
        lock.lost = field::Empty,
    )
}

/// Watches over a held slot; ends when it is lost, with the reason.
async fn lost(permit: &Permit, found: &Found) -> String {
    tokio::select! {
        reason = permit.lost() => return reason.to_string(),
        () = permit.draining() => eprintln!("lockkeeper: {}", found.draining(permit.slot())),
    }
    permit.lost().await.to_string()
}
