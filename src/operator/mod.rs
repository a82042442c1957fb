//! How Kubernetes is touched: this file starts the controllers and stops them.
//! Each kind's reconcile is in a file of its own; what is decided is in
//! [`plan`](crate::plan).

mod api_server;
pub mod cleanup;
pub mod context;
pub mod error;
pub mod events;
pub mod fetch;
pub mod leader;
mod limits;
pub mod memory;
pub mod metrics;
mod names;
mod owners;
pub mod pressure_queue;
pub mod report;
pub mod semaphore;
pub mod server;
mod turns;
mod watches;
mod work;

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::Store as Cache;
use kube::runtime::watcher;
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::api_server::connect;
use self::context::{Context, Rhythm};
use self::error::{ReconcileError, on_error};
use self::events::Events;
use self::fetch::Connections;
use self::leader::{Candidate, LeaderElection};
use self::metrics::Metrics;
use self::names::Names;
use self::report::Managed;
use self::server::Readiness;
use crate::api::validate::DefaultNames;
use crate::api::{FIELD_MANAGER, PressureQueue, Semaphore};
use crate::plan::MayAct;
use crate::plan::connection::{RabbitmqSettings, RedisSettings};
use crate::plan::quota::Limits;
use crate::pressure::StoreOptions;
use crate::semaphore::BrokerOptions;

/// How the operator runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    pub http_address: SocketAddr,
    /// The namespaces to watch; none means all.
    pub watch_namespaces: BTreeSet<String>,
    /// Which objects to watch by their labels, in the API server's syntax; absent
    /// means all. Objects beyond them are not seen, by the search for two that stand
    /// for the same lock either.
    pub watch_labels: Option<String>,
    /// The broker of Semaphores that name none.
    pub rabbitmq: Option<RabbitmqSettings>,
    /// The server of `PressureQueue`s that name none.
    pub redis: Option<RedisSettings>,
    /// How often to look at the servers.
    pub rhythm: Rhythm,
    /// Which names are allowed on the default connections.
    pub default_names: DefaultNames,
    /// How much each namespace may have.
    pub limits: Limits,
    /// How one of several replicas is chosen to act; absent, this one acts at once.
    pub leader_election: Option<LeaderElection>,
    /// Whether `/metrics` has a series or more for each object.
    pub metrics_per_object: bool,
}

/// Why the operator could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// There is no usable configuration for the API server.
    #[error("no Kubernetes API server to talk to: {0}; set KUBECONFIG, or run in a pod")]
    NoCluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The HTTP address is taken or not ours.
    #[error("could not listen on {address}: {source}; choose another --http-address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The Lease could not be renewed in time. Whoever starts this program again (in a
    /// pod, the kubelet) starts it as a candidate.
    #[error(
        "the lease {lease:?} was lost: another replica acts now, or the API server does not answer; start again"
    )]
    LeaseLost {
        /// The Lease's name.
        lease: String,
    },
}

/// What is waited for until it is known whether this replica is the leader.
const LEASE: &str = "the lease of the leader election";

/// Seconds. A leader that falls silent in the middle of a change keeps the lock's admin
/// mutex for two to three of them: so long its successor waits for that one lock.
const HEARTBEAT: u16 = 15;

/// After the first word to stop, reconciles that run get this long.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(20);

/// How the controllers came to their end.
enum End {
    /// Asked to stop, and every reconcile has ended.
    Quiet,
    /// Asked to stop, and one has not.
    Late,
    /// This replica is not the leader any more.
    Deposed,
}

/// Runs until `stop`; then no reconcile is begun, and running ones end (a resize
/// between two effects).
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), OperatorError> {
    let metrics = Metrics::new(options.metrics_per_object);
    let mut candidate = match options.leader_election.clone() {
        Some(election) => {
            let client =
                connect(&metrics, MayAct::default()).await.map_err(OperatorError::NoCluster)?;
            let home = client.default_namespace().to_owned();
            Some(Candidate::new(client, election, &home))
        }
        None => None,
    };
    let may_act = candidate.as_ref().map(|c| c.term().may_act()).unwrap_or_default();
    let client = connect(&metrics, may_act.clone()).await.map_err(OperatorError::NoCluster)?;
    let not_listening = |source| OperatorError::Listen { address: options.http_address, source };
    let listener = TcpListener::bind(options.http_address).await.map_err(not_listening)?;
    // With port 0 the system has chosen one.
    let address = listener.local_addr().map_err(not_listening)?;
    let kinds = [what::<Semaphore>(), what::<PressureQueue>()];
    // Who stands by is ready: a rollout waits for that, and the leader for the rollout.
    let readiness = match &candidate {
        Some(_) => Readiness::waiting_for([LEASE.to_owned()]),
        None => Readiness::waiting_for(kinds.clone()),
    };
    let serving =
        tokio::spawn(server::serve(listener, readiness.clone(), metrics.clone(), stop.clone()));
    let namespaces = options.watch_namespaces.iter().cloned().collect::<Vec<_>>().join(",");
    info!(%address, namespaces, labels = options.watch_labels, "operator starts");

    if let (Some(candidate), Some(election)) = (&mut candidate, &options.leader_election) {
        metrics.leader(&election.name, false);
        if !candidate.wins(&stop, || readiness.done(LEASE)).await {
            return Ok(());
        }
        metrics.leader(&election.name, true);
        readiness.wait_for(kinds);
    }

    let (events, publishing) = Events::new(client.clone());
    let publishing = tokio::spawn(publishing);
    let ctx = Arc::new(context(&options, &client, events, metrics, may_act, stop.clone()));

    let semaphores = control(
        Arc::clone(&ctx),
        &options,
        &readiness,
        Arc::clone(&ctx.semaphore_names),
        |cache| {
            ctx.metrics.read_semaphores(cache.clone());
            let _ = ctx.all_semaphores.set(cache);
        },
        semaphore::reconcile,
        cleanup::semaphore,
    );
    let queues = control(
        Arc::clone(&ctx),
        &options,
        &readiness,
        Arc::clone(&ctx.pressure_queue_names),
        |cache| {
            ctx.metrics.read_queues(cache.clone());
            let _ = ctx.all_pressure_queues.set(cache);
        },
        pressure_queue::reconcile,
        cleanup::pressure_queue,
    );
    let both = async { tokio::join!(semaphores, queues) };
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN_PATIENCE).await;
    };
    // Until the last reconcile has ended: a resize that runs may end.
    let deposed = async {
        match &mut candidate {
            Some(candidate) => candidate.keeps().await,
            None => std::future::pending().await,
        }
    };
    let end = tokio::select! {
        _ = both => End::Quiet,
        () = too_late => End::Late,
        () = deposed => End::Deposed,
    };
    stop.cancel();
    match (end, candidate, options.leader_election) {
        (End::Quiet, candidate, _) => {
            info!("every reconcile has ended");
            if let Some(mut candidate) = candidate {
                candidate.resigns().await;
            }
        }
        // The Lease runs out by itself: what is not done yet may still act for a moment.
        (End::Late, ..) => warn!("a reconcile did not end in time"),
        (End::Deposed, _, election) => {
            let lease = election.map(|election| election.name).unwrap_or_default();
            return Err(OperatorError::LeaseLost { lease });
        }
    }
    publishing.abort();
    if let Ok(Err(error)) = serving.await {
        warn!(%error, "the HTTP server failed");
    }
    Ok(())
}

/// What every reconcile may use.
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
            options.rabbitmq.clone(),
            options.redis.clone(),
            BrokerOptions {
                client_name: FIELD_MANAGER.to_owned(),
                facts_interval: options.rhythm.observe,
                list_interval: options.rhythm.sweep_age(),
                heartbeat: Some(HEARTBEAT),
                may_act: may_act.clone(),
                ..BrokerOptions::default()
            },
            StoreOptions::new(FIELD_MANAGER),
        ),
        turns: turns::Turns::default(),
        rhythm: options.rhythm,
        metrics,
        started: Instant::now(),
        default_names: options.default_names,
        limits: options.limits,
        stop,
        may_act,
        semaphores: memory::Memories::default(),
        pressure_queues: memory::Memories::default(),
        all_semaphores: OnceLock::new(),
        all_pressure_queues: OnceLock::new(),
        semaphore_names: Arc::default(),
        pressure_queue_names: Arc::default(),
    }
}

/// Objects listed at once at a start: a page is in memory as text and as objects
/// before any of it is made smaller.
const PAGE: u32 = 100;

/// What is waited for until a kind is watched.
fn what<K: Managed>() -> String {
    format!("the resource {}", K::plural(&()))
}

/// Watches one kind until the operator stops.
async fn control<K, R, C>(
    ctx: Arc<Context>,
    options: &Options,
    readiness: &Readiness,
    names: Arc<Names>,
    share: impl FnOnce(Cache<K>),
    reconcile: impl Fn(Arc<K>, Arc<Context>) -> R + Copy + Send + Sync + 'static,
    cleanup: impl Fn(Arc<K>, Arc<Context>) -> C + Copy + Send + Sync + 'static,
) where
    K: Managed + Unpin,
    R: Future<Output = Result<Action, ReconcileError>> + Send + 'static,
    C: Future<Output = Result<Action, ReconcileError>> + Send + 'static,
{
    let namespaces = options.watch_namespaces.iter();
    let mut apis: Vec<Api<K>> =
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
        _ = join_all(apis.iter().map(|api| watches::until_installed(api, &config))) => {}
    }
    let (cache, writer) = reflector::store();
    let objects = watches::of(apis, &config, cache.clone())
        // Nobody asks who wrote which field, and it is most of an object's weight.
        .modify(|object: &mut K| object.meta_mut().managed_fields = None)
        .inspect_ok(move |event| names.see(event))
        .reflect(writer)
        .applied_objects();
    let controller = Controller::for_stream(objects, cache.clone())
        .with_config(Config::default())
        .graceful_shutdown_on(stop.cancelled_owned());
    share(cache.clone());
    let ready = {
        let readiness = readiness.clone();
        async move {
            if cache.wait_until_ready().await.is_ok() {
                readiness.done(&what::<K>());
                info!(kind = %K::kind(&()), "watching");
            }
        }
    };
    let running = controller
        .run(move |object, ctx| work::one(object, ctx, reconcile, cleanup), on_error, ctx)
        .for_each(|result| async move {
            // Reconcile errors were logged where they happened; an object that is
            // gone needs no word.
            if let Err(kube::runtime::controller::Error::QueueError(error)) = result {
                warn!(%error, kind = %K::kind(&()), "the watch failed, trying again");
            }
        });
    tokio::join!(running, ready);
}
