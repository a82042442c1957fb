//! `lockkeeper hold`: takes a lock, holds it until a signal, gives it back.

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
    telemetry::start(LogFormat::Text);
    // One thread would do, but a heartbeat must not wait for anything else.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    runtime.block_on(async {
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
        tokio::select! {
            why = lost(&permit, &found) => {
                let message = format!("{what} was lost: {why}. Stop what it guards");
                Err(Failure::new(Failure::LOST, message))
            }
            _ = &mut signal => {
                // Lost just now: nothing is guarded any more either way.
                let _ = permit.release().await;
                client.close().await;
                println!("released {what}");
                Ok(())
            }
        }
    })
}

/// Watches over a held slot; ends when it is lost, with the reason.
async fn lost(permit: &Permit, found: &Found) -> String {
    tokio::select! {
        reason = permit.lost() => return reason.to_string(),
        () = permit.draining() => eprintln!("lockkeeper: {}", found.draining(permit.slot())),
    }
    permit.lost().await.to_string()
}
