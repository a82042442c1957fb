//! `lockkeeper hold`: acquires a lock, holds it until a signal, then releases it.

use std::net::SocketAddr;
use std::sync::Arc;

use lockkeeper_semaphore::{Permit, until_ended};
use tracing::{Instrument, Span, debug_span, field};

use super::acquire::{Acquire, GIVEN_UP};
use super::common::{runtime, say};
use super::failure::Failure;
use super::output;
use super::probes::Probes;
use super::signals::Signals;
use super::target::{FoundLock, LockTarget};
use super::telemetry::{self, LogFormat};

/// Arguments of `lockkeeper hold`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    target: LockTarget,

    #[command(flatten)]
    acquire: Acquire,

    /// What to do if the semaphore is shrunk below the held slot
    #[arg(long, value_enum, default_value_t = OnDrain::Finish)]
    on_drain: OnDrain,

    /// What to do if the lock is lost
    #[arg(long, value_enum, default_value_t = OnLost::Terminate)]
    on_lost: OnLost,

    /// Answer HTTP probes at this address, for example 0.0.0.0:8080: GET /held is 200 only while
    /// the lock is held, otherwise 503; GET /lost is 503 once the lock was lost, otherwise 200
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// The reaction to the removal of the held slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnDrain {
    /// Hold it until a signal; no other client gets the slot until then
    Finish,
    /// Release it, and exit with 0
    Stop,
}

/// The reaction to the loss of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnLost {
    /// Exit with 80
    Terminate,
    /// Print a message, and exit with 80 only after a signal
    Warn,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut signals = Signals::ending()?;
    let _telemetry = telemetry::start(LogFormat::Text);
    // Several threads, because nothing may delay a heartbeat.
    let runtime = runtime()?;
    let span = debug_span!("hold");
    telemetry::continue_trace(&span);
    let hold = async {
        let probes = Probes::default();
        if let Some(address) = arguments.listen {
            probes.listen(address).await?;
        }
        let (found, client, permit) = tokio::select! {
            acquired = arguments.acquire.take(&arguments.target) => acquired?,
            _ = signals.next() => {
                until_ended(GIVEN_UP).await;
                let message = "stopped while waiting for the lock";
                return Err(Failure::new(Failure::NOT_ACQUIRED, message));
            }
        };
        let permit = Arc::new(permit);
        probes.acquired(&permit);
        let what = found.what(permit.slot());
        let announced = output::write(&format!("holding {what}\n"));
        let holding = held(&found, &permit);
        tokio::select! {
            why = lost(&permit) => {
                holding.record("lock.lost", &why);
                probes.failed(&why);
                let message = format!("{what} was lost: {why}. Stop the guarded work");
                if arguments.on_lost == OnLost::Warn {
                    say(message);
                    signals.next().await;
                    return Err(Failure::silent(Failure::LOST));
                }
                return Err(Failure::new(Failure::LOST, message));
            }
            () = drained(&permit, &found, arguments.on_drain) => {}
            _ = signals.next() => {}
            () = std::future::ready(()), if announced.is_err() => {}
        }
        // The lock may have been lost just now. Nothing is guarded any more in either case.
        drop(holding);
        probes.released();
        if let Some(permit) = Arc::into_inner(permit) {
            let _ = permit.release().instrument(debug_span!("lock.release")).await;
        }
        client.close().await;
        announced?;
        output::write(&format!("released {what}\n"))
    };
    let result = runtime.block_on(hold.instrument(span));
    // Otherwise the shutdown would wait for a name server that does not answer.
    runtime.shutdown_background();
    result
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
async fn lost(permit: &Permit) -> String {
    permit.lost().await.to_string()
}

/// Waits until a held slot is to be released because it is draining.
async fn drained(permit: &Permit, found: &FoundLock, on_drain: OnDrain) {
    permit.draining().await;
    say(found.draining(permit.slot()));
    if on_drain == OnDrain::Finish {
        std::future::pending::<()>().await;
    }
}
