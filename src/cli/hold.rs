//! `lockkeeper hold`: acquires a lock, holds it until a signal, then releases it. See
//! `launch` and `background` for a hold that outlives the command, `bounds` for its limits,
//! and `reports` for where it is reported.

mod background;
mod bounds;
mod launch;
mod reports;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use lockkeeper_semaphore::{Client, LostReason, Moment, Permit, until_ended};
use nix::sys::signal::Signal;
use tracing::{Instrument, Span, debug_span, field};

use self::background::{Background, Request};
use self::bounds::{Bounds, Watch};
use self::reports::Reports;
use super::acquire::{Acquire, GIVEN_UP};
use super::common::{runtime, say};
use super::failure::Failure;
use super::probes::Probes;
use super::signals::Signals;
use super::target::{FoundLock, LockTarget};
use super::telemetry::{self, LogFormat};

/// Arguments of `lockkeeper hold`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 the lock was released, or is held by a process in the background; 64 invalid usage, or a lock of another \
protocol; 69 the broker is unreachable or rejects the user; 73 the state file can't be written; 75 (or \
-E) no slot became available in time; 80 the lock was lost; 81 there is no such semaphore; 82 the state file is of a \
hold that has not ended.

With --background, this command waits for the lock, and exits when a process in the background holds it. `lockkeeper \
verify --state FILE` asks that process whether the lock is still held, and `lockkeeper release --state FILE` releases \
it. FILE is JSON and has lockName, holderId, slot, tokenId and fencingToken. If the process is killed, the broker \
frees the slot immediately. If neither --while nor --release-after is given, the lock is held until it is released or lost.")]
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

    /// Exit when the lock is held, and hold it in the background, for the later steps of a pipeline
    #[arg(long, requires = "state")]
    background: bool,

    /// File to create, by which verify and release find the lock. Only for this user; not in a
    /// directory that a step empties
    #[arg(long, value_name = "FILE", requires = "background")]
    state: Option<PathBuf>,

    #[command(flatten)]
    bounds: Bounds,

    /// Marks the process in the background
    #[arg(long, hide = true, requires = "state")]
    in_background: bool,
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
    if arguments.background && !arguments.in_background {
        return launch::run();
    }
    let mut signals = Signals::ending()?;
    let _telemetry = telemetry::start(LogFormat::Text);
    // Several threads, because nothing may delay a heartbeat.
    let runtime = runtime()?;
    let span = debug_span!("hold");
    telemetry::continue_trace(&span);
    let result = runtime.block_on(hold(arguments, &mut signals).instrument(span));
    // Otherwise the shutdown would wait for a name server that does not answer.
    runtime.shutdown_background();
    result
}

async fn hold(arguments: &Arguments, signals: &mut Signals) -> Result<(), Failure> {
    let watch = arguments.bounds.watch()?;
    let mut reports = match &arguments.state {
        Some(path) => Reports::Background(Box::new(Background::prepare(path)?)),
        None => Reports::Streams,
    };
    let probes = Probes::default();
    if let Some(address) = arguments.listen {
        probes.listen(address).await?;
    }
    let (found, client, permit) = tokio::select! {
        acquired = arguments.acquire.take(&arguments.target) => acquired?,
        why = stopped(signals, &mut reports, watch) => {
            until_ended(GIVEN_UP).await;
            let message = format!("{why} while waiting for the lock");
            return Err(Failure::new(Failure::NOT_ACQUIRED, message));
        }
    };
    let permit = Arc::new(permit);
    probes.acquired(&permit);
    let what = found.what(permit.slot());
    let identity = arguments.acquire.identity();
    let announced = tokio::select! {
        biased;
        announced = reports.held(&what, &found, &permit, identity) => announced,
        _ = signals.next() => Err(Failure::silent(Failure::NOT_ACQUIRED)),
    };
    let holding = Holding { arguments, found, client, permit, probes, what, reports };
    match announced {
        Ok(()) => holding.until_it_ends(signals, watch).await,
        Err(failure) => {
            holding.reports.withdraw();
            holding.release().await;
            Err(failure)
        }
    }
}

/// Waits for a reason to give up waiting. Cancel safe.
async fn stopped(signals: &mut Signals, reports: &mut Reports, watch: Watch) -> String {
    tokio::select! {
        _ = signals.next() => "stopped".to_owned(),
        () = reports.left_alone() => "stopped with the command that started this process".to_owned(),
        ended = watch.process_ended() => format!("stopped, because {ended},"),
    }
}

/// A held lock.
struct Holding<'a> {
    arguments: &'a Arguments,
    found: FoundLock,
    client: Client,
    permit: Arc<Permit>,
    probes: Probes,
    what: String,
    reports: Reports,
}

/// Why a lock is not held any more.
enum End {
    Lost(String),
    Drained,
    Signal(Signal),
    /// One of its limits is reached. Contains a description.
    Bound(String),
    /// Another process waits for the release.
    Requested(Request),
}

impl Holding<'_> {
    async fn until_it_ends(self, signals: &mut Signals, watch: Watch) -> Result<(), Failure> {
        let span = held(&self.found, &self.permit);
        let acquired = Moment::now();
        let end = tokio::select! {
            why = lost(&self.permit) => End::Lost(why),
            () = self.drained() => End::Drained,
            signal = signals.next() => End::Signal(signal),
            why = watch.reached(acquired) => End::Bound(why),
            request = self.reports.requested() => End::Requested(request),
            never = self.reports.answer(&self.permit) => match never {},
        };
        let why = match end {
            End::Lost(why) => {
                span.record("lock.lost", &why);
                let limit = watch.reached(acquired);
                return Err(self.lose(&why, signals, limit).await);
            }
            End::Requested(request) => {
                drop(span);
                let (what, reports, lost) = self.release().await;
                reports.answer_request(request, &what, lost.map(|why| why.to_string()).as_deref());
                return Ok(());
            }
            End::Drained => "its slot was removed (--on-drain stop)".to_owned(),
            End::Signal(signal) => format!("its process was ended by {signal}"),
            End::Bound(why) => {
                self.reports.limited(&why);
                why
            }
        };
        // The lock may have been lost just now. Nothing is guarded any more in either case.
        drop(span);
        let (what, reports, _) = self.release().await;
        reports.released(&what, &why)
    }

    /// Waits until the slot is to be released because it is draining.
    async fn drained(&self) {
        self.permit.draining().await;
        self.reports.draining(&self.found.draining(self.permit.slot()));
        if self.arguments.on_drain == OnDrain::Finish {
            std::future::pending::<()>().await;
        }
    }

    /// Reports that the lock was lost. `limit` ends a process that only warns.
    async fn lose(
        self,
        why: &str,
        signals: &mut Signals,
        limit: impl Future<Output = String>,
    ) -> Failure {
        self.probes.failed(why);
        self.reports.lost(why);
        let message = format!("{} was lost: {why}. Stop the guarded work", self.what);
        if self.arguments.on_lost == OnLost::Terminate {
            return Failure::new(Failure::LOST, message);
        }
        say(message);
        tokio::select! {
            _ = signals.next() => {}
            _ = limit => {}
            request = self.reports.requested() => {
                self.reports.answer_request(request, &self.what, Some(why));
            }
            never = self.reports.answer(&self.permit) => match never {},
        }
        Failure::silent(Failure::LOST)
    }

    /// Releases the lock. Returns why it had been lost before, if so.
    async fn release(self) -> (String, Reports, Option<LostReason>) {
        let Self { client, permit, probes, what, reports, .. } = self;
        probes.released();
        let lost = match Arc::into_inner(permit) {
            Some(permit) => permit.release().instrument(debug_span!("lock.release")).await.err(),
            None => None,
        };
        client.close().await;
        (what, reports, lost)
    }
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
