//! The operator. This file starts and stops the controllers. Each kind has a folder of its
//! own. See [`plan`](lockkeeper_plan) for the decisions.

mod answers;
pub mod api_error;
mod api_server;
mod cleanup;
mod concurrency;
mod conflict;
pub mod context;
mod decoding;
pub mod defaults;
mod error;
mod events;
pub mod fetch;
mod kind;
mod kind_context;
pub mod kubeconfig;
pub mod leader;
mod metrics;
mod names;
mod object_metrics;
mod outcome;
mod pressure_queue;
mod quota;
mod reconcile;
mod reduced;
mod runner;
mod same_server;
mod semaphore;
pub mod server;
mod short_name;
mod state;
mod status_writer;
mod unwatched;
mod watches;
mod work;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use kube::runtime::watcher;
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client};
use lockkeeper_api::validate::DefaultRules;
use lockkeeper_api::{FIELD_MANAGER, PressureQueue, Semaphore};
use lockkeeper_plan::MayAct;
use lockkeeper_plan::quota::Limits;
use lockkeeper_pressure::StoreOptions;
use lockkeeper_semaphore::BrokerOptions;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::answers::PAGE;
use self::api_server::connect;
use self::context::{Context, Intervals};
use self::defaults::{DefaultSources, Defaults};
use self::events::Events;
use self::fetch::Connections;
use self::kind::Kind;
use self::kind_context::KindContext;
use self::leader::{Candidate, LeaderElection};
use self::metrics::Metrics;
use self::reduced::Reduced;
use self::server::Readiness;
use self::state::place;
use self::unwatched::Leaving;

/// Options of the operator.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of `/healthz`, `/readyz` and `/metrics`.
    pub http_address: SocketAddr,
    /// Namespaces to watch. Empty: all.
    pub watch_namespaces: BTreeSet<String>,
    /// Label selector of the objects to watch, in the API server's syntax. `None`: all.
    /// Other objects are not considered when conflicts are detected.
    pub watch_labels: Option<String>,
    /// Servers of objects that specify none.
    pub defaults: DefaultSources,
    /// Intervals of observation.
    pub intervals: Intervals,
    /// Rules for the default connections.
    pub default_rules: DefaultRules,
    /// Quotas of each namespace.
    pub limits: Limits,
    /// Leader election among replicas. `None`: this process acts immediately.
    pub leader_election: Option<LeaderElection>,
    /// Whether `/metrics` has series for each object.
    pub metrics_per_object: bool,
}

/// Error that stopped the operator or prevented its start.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// There is no usable configuration for the API server.
    #[error("{}", api_error::explain(.0.as_ref()))]
    NoCluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The HTTP address is in use or cannot be bound.
    #[error("could not listen on {address}: {source}; choose another --http-address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The Lease could not be renewed in time. The process exits. When it is restarted
    /// (in a pod, by the kubelet), it starts as a candidate.
    #[error(
        "the lease {lease:?} was lost: another replica acts now, or the API server does not answer; start again"
    )]
    LeaseLost {
        /// The Lease's name.
        lease: String,
    },
}

/// Readiness condition until the leader election has determined this replica's role.
const LEASE: &str = "the lease of the leader election";

/// AMQP heartbeat in seconds. A leader that fails during a change keeps the lock's admin
/// mutex for two to three heartbeats. Its successor waits that long for that one lock.
const HEARTBEAT: u16 = 15;

/// Time that running reconciles get to end after the stop was requested.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(20);

/// How the controllers ended.
enum End {
    /// Stop was requested, and every reconcile has ended.
    Quiet,
    /// Stop was requested, and a reconcile has not ended in time.
    Late,
    /// This replica is no longer the leader.
    Lost,
}

/// Runs the operator until `stop`. After that, no reconcile starts, and running ones end
/// (a resize between two effects).
///
/// # Errors
///
/// [`OperatorError`]: there is no API server, the address can't be bound, or the Lease
/// was lost.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), OperatorError> {
    let metrics = Metrics::new(options.metrics_per_object);
    let mut candidate = candidate(&options, &metrics).await?;
    let may_act = candidate.as_ref().map(|c| c.term().may_act()).unwrap_or_default();
    let client = connect(&metrics, may_act.clone()).await.map_err(OperatorError::NoCluster)?;
    let not_listening = |source| OperatorError::Listen { address: options.http_address, source };
    let listener = TcpListener::bind(options.http_address).await.map_err(not_listening)?;
    // With port 0, the system chooses the port.
    let address = listener.local_addr().map_err(not_listening)?;
    let kinds = [what::<Semaphore>(), what::<PressureQueue>()];
    // A standby replica is ready. A rollout waits for its readiness, and the old leader
    // ends only when the rollout proceeds.
    let readiness = match &candidate {
        Some(_) => Readiness::waiting_for([LEASE.to_owned()]),
        None => Readiness::waiting_for(kinds.clone()),
    };
    let app = server::app(readiness.clone(), metrics.clone());
    let serving = tokio::spawn(server::serve(listener, app, stop.clone()));
    let namespaces = options.watch_namespaces.iter().cloned().collect::<Vec<_>>().join(",");
    info!(%address, namespaces, labels = options.watch_labels, "operator starts");
    if let Some(fault) = options.defaults.fault() {
        warn!("no default connection: {fault}");
    }

    if let (Some(candidate), Some(election)) = (&mut candidate, &options.leader_election) {
        metrics.leader(&election.name, false);
        if !candidate.acquire(&stop, || readiness.done(LEASE)).await {
            return Ok(());
        }
        metrics.leader(&election.name, true);
        readiness.wait_for(kinds);
    }

    let (events, publishing) = Events::new(client.clone());
    let publishing = tokio::spawn(publishing);
    let ctx = Arc::new(context(&options, &client, events, metrics, may_act, stop.clone()));

    let semaphores = control::<Semaphore>(Arc::clone(&ctx), &options, &readiness);
    let queues = control::<PressureQueue>(Arc::clone(&ctx), &options, &readiness);
    let both = async {
        tokio::join!(semaphores, queues);
    };
    let end = until_end(pin!(both), candidate.as_mut(), &stop).await;
    stop.cancel();
    match end {
        End::Quiet => {
            info!("every reconcile has ended");
            if let Some(mut candidate) = candidate {
                candidate.release().await;
            }
        }
        // The Lease is left to expire, because unfinished work may still have effects for
        // a moment.
        End::Late => warn!("a reconcile did not end in time"),
        End::Lost => {
            let lease = options.leader_election.map(|election| election.name).unwrap_or_default();
            return Err(OperatorError::LeaseLost { lease });
        }
    }
    publishing.abort();
    if let Err(error) = serving.await {
        warn!(%error, "the HTTP server failed");
    }
    Ok(())
}

/// Returns this process as a candidate, with a client of its own. `None` without leader election.
async fn candidate(
    options: &Options,
    metrics: &Metrics,
) -> Result<Option<Candidate>, OperatorError> {
    let Some(election) = options.leader_election.clone() else { return Ok(None) };
    let client = connect(metrics, MayAct::default()).await.map_err(OperatorError::NoCluster)?;
    let home = client.default_namespace().to_owned();
    Ok(Some(Candidate::new(client, election, &home)))
}

/// Waits until the controllers have ended, and renews the Lease until then, so that a running
/// resize can end.
async fn until_end(
    controllers: impl Future<Output = ()>,
    candidate: Option<&mut Candidate>,
    stop: &CancellationToken,
) -> End {
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN_PATIENCE).await;
    };
    let lost = async {
        match candidate {
            Some(candidate) => candidate.renew().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = controllers => End::Quiet,
        () = too_late => End::Late,
        () = lost => End::Lost,
    }
}

/// Creates the context of all reconciles.
fn context(
    options: &Options,
    client: &Client,
    events: Events,
    metrics: Metrics,
    may_act: MayAct,
    stop: CancellationToken,
) -> Context {
    Context {
        client: client.clone(),
        events,
        connections: Connections::new(
            client.clone(),
            Defaults::new(options.defaults.clone()),
            BrokerOptions::default()
                .with_client_name(FIELD_MANAGER)
                .with_facts_interval(options.intervals.observe)
                .with_list_interval(options.intervals.sweep_age())
                .with_heartbeat(HEARTBEAT)
                .with_may_act(may_act.clone()),
            StoreOptions::new(FIELD_MANAGER).with_longest_answer(LONGEST_ANSWER),
        ),
        intervals: options.intervals,
        metrics,
        started: Instant::now(),
        default_rules: options.default_rules,
        stop,
        may_act,
    }
}

/// Maximum size of an answer of Redis, in bytes. The operator reads no elements. The list of
/// 10,000 clients has about 3 MiB.
const LONGEST_ANSWER: usize = 8 * 1024 * 1024;

/// Returns the readiness condition for the watch of a kind.
fn what<K: Kind>() -> String {
    format!("the resource {}", K::plural(&()))
}

/// Watches one kind until the operator stops.
async fn control<K: Kind + Unpin>(ctx: Arc<Context>, options: &Options, readiness: &Readiness) {
    let namespaces = options.watch_namespaces.iter();
    let mut apis: Vec<Api<Reduced<K>>> =
        namespaces.map(|namespace| Api::namespaced(ctx.client.clone(), namespace)).collect();
    if apis.is_empty() {
        apis.push(Api::all(ctx.client.clone()));
    }
    let mut config = watcher::Config::default().page_size(PAGE);
    config.label_selector.clone_from(&options.watch_labels);
    ctx.metrics.controllers.begin::<K>();
    let stop = ctx.stop.clone();
    tokio::select! {
        () = stop.cancelled() => return,
        () = watches::until_installed(&apis, &config) => {}
    }
    let (cache, writer) = reflector::store();
    let labels = options.watch_labels.clone();
    let kind = Arc::new(KindContext::new(Arc::clone(&ctx), cache.clone(), options.limits));
    let leaving = Leaving::new(Arc::clone(&kind), labels);
    let objects = watches::of(apis, &config, &cache, &ctx)
        .inspect_ok({
            let kind = Arc::clone(&kind);
            move |event| kind.names.see(event)
        })
        .reflect(writer)
        .inspect_ok({
            let kind = Arc::clone(&kind);
            move |event| {
                kind.quota.see(event, &kind.cache);
                leaving.see(event);
            }
        })
        .applied_objects()
        // Errors of the watch were logged where they occurred.
        .filter_map(async |object| object.ok().map(|object| place(&object)));
    ctx.metrics.read(Box::new(cache.clone()));
    let ready = async {
        if cache.wait_until_ready().await.is_ok() {
            readiness.done(&what::<K>());
            info!(kind = %K::kind(&()), "watching");
        }
    };
    runner::run(objects, kind, ready, stop).await;
}
