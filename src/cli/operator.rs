//! `lockkeeper operator`: flags, environment and signals; the work is in
//! [`crate::operator`].

use std::net::SocketAddr;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::telemetry::{self, LogFormat};
use super::{Failure, duration, signalled};
use crate::api::validate::DefaultNames;
use crate::operator::context::Rhythm;
use crate::operator::leader::LeaderElection;
use crate::operator::{Options, run as run_operator};
use crate::plan::connection::{RabbitmqSettings, RedisSettings, SettingsError};
use crate::plan::quota::Limits;

/// Arguments of `lockkeeper operator`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where /healthz, /readyz and /metrics are served
    #[arg(long, env = "LOCKKEEPER_HTTP_ADDRESS", default_value = "127.0.0.1:8080")]
    http_address: SocketAddr,

    /// Watch this namespace only, instead of all; several, separated by commas or each with the
    /// option, are watched together
    #[arg(
        long,
        env = "LOCKKEEPER_WATCH_NAMESPACE",
        value_name = "NAMESPACE",
        value_delimiter = ','
    )]
    watch_namespace: Vec<String>,

    /// Watch only objects with these labels: team=media,stage!=test
    #[arg(long, env = "LOCKKEEPER_WATCH_LABEL_SELECTOR", value_name = "SELECTOR")]
    watch_label_selector: Option<String>,

    /// The broker of Semaphores that name none: amqp://user:password@host:5672/vhost; for amqps://
    /// and https:// the files RABBITMQ_TLS_CA_FILE, RABBITMQ_TLS_CERT_FILE and
    /// RABBITMQ_TLS_KEY_FILE count
    #[arg(long, env = "AMQP_URL", hide_env_values = true, value_name = "URL")]
    amqp_url: Option<String>,

    /// That broker's management API: http://user:password@host:15672
    #[arg(long, env = "RABBITMQ_MANAGEMENT_URL", hide_env_values = true, value_name = "URL")]
    management_url: Option<String>,

    /// That API with an administrator's user and password, to take slots from their holders when
    /// told to: http://user:password@host:15672
    #[arg(long, env = "RABBITMQ_ADMIN_URL", hide_env_values = true, value_name = "URL")]
    admin_url: Option<String>,

    /// The server of PressureQueues that name none: redis://user:password@host:6379/0; for
    /// rediss:// the files REDIS_TLS_CA_FILE, REDIS_TLS_CERT_FILE and REDIS_TLS_KEY_FILE count
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    redis_url: Option<String>,

    /// Longest time between two looks at holders and queues
    #[arg(long, env = "LOCKKEEPER_OBSERVE_INTERVAL", default_value = "10s", value_parser = interval)]
    observe_interval: Duration,

    /// Longest time until slots that are missing or too many are put right
    #[arg(long, env = "LOCKKEEPER_DRIFT_INTERVAL", default_value = "30s", value_parser = interval)]
    drift_interval: Duration,

    /// For how long nothing of a queue must have moved before what a dead client has left is mended
    #[arg(long, env = "LOCKKEEPER_REPAIR_IDLE", default_value = "30s", value_parser = interval)]
    repair_idle: Duration,

    /// On the default connections, allow names of other namespaces too (all namespaces trust each
    /// other)
    #[arg(long, env = "LOCKKEEPER_ALLOW_ANY_NAME")]
    allow_any_name: bool,

    /// Most slots that the Semaphores of a namespace may ask for together, the oldest first; absent,
    /// there is no limit
    #[arg(long, env = "LOCKKEEPER_MAX_SLOTS_PER_NAMESPACE", value_name = "NUMBER")]
    max_slots_per_namespace: Option<u32>,

    /// Most Semaphores that a namespace may have, and as many PressureQueues, the oldest first;
    /// absent, there is no limit
    #[arg(long, env = "LOCKKEEPER_MAX_OBJECTS_PER_NAMESPACE", value_name = "NUMBER")]
    max_objects_per_namespace: Option<u32>,

    /// Act only while holding a Lease, so that several replicas can run and one of them acts
    #[arg(long, env = "LOCKKEEPER_LEADER_ELECT")]
    leader_elect: bool,

    /// The Lease's name
    #[arg(
        long,
        env = "LOCKKEEPER_LEADER_ELECTION_ID",
        default_value = "lockkeeper",
        value_name = "NAME"
    )]
    leader_election_id: String,

    /// The Lease's namespace; absent, the one that the operator runs in
    #[arg(long, env = "LOCKKEEPER_LEADER_ELECTION_NAMESPACE", value_name = "NAMESPACE")]
    leader_election_namespace: Option<String>,

    /// How long after its last renewal a leader that fell silent is replaced
    #[arg(long, env = "LOCKKEEPER_LEASE_DURATION", default_value = "15s", value_parser = interval)]
    lease_duration: Duration,

    /// How long the leader acts without a renewal; then the operator ends
    #[arg(long, env = "LOCKKEEPER_RENEW_DEADLINE", default_value = "10s", value_parser = interval)]
    renew_deadline: Duration,

    /// How often the leader renews the Lease, and the other replicas look at it
    #[arg(long, env = "LOCKKEEPER_RETRY_PERIOD", default_value = "2s", value_parser = interval)]
    retry_period: Duration,

    /// Whether /metrics has series for each object; without, only sums are told: --metrics-per-object=false
    #[arg(long, env = "LOCKKEEPER_METRICS_PER_OBJECT", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    metrics_per_object: bool,

    /// How log lines look
    #[arg(long, env = "LOCKKEEPER_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < Duration::from_millis(100) {
        return Err("an interval is at least 100ms".to_owned());
    }
    Ok(interval)
}

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    let _telemetry = telemetry::start(arguments.log_format);
    let options = options(arguments)?;
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let on_signal = stop.clone();
        tokio::spawn(async move {
            if let Err(error) = signalled().await {
                tracing::error!(%error, "signals can't be awaited");
            }
            tracing::info!("stopping");
            on_signal.cancel();
        });
        Box::pin(run_operator(options, stop))
            .await
            .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))
    })
}

fn options(arguments: Arguments) -> Result<Options, Failure> {
    let usage =
        |what: &str, error: SettingsError| Failure::new(Failure::USAGE, format!("{what}: {error}"));
    // An empty value is how a chart leaves an optional variable out.
    let given = |url: &Option<String>| url.clone().filter(|url| !url.is_empty());
    let variable = |name: &str| std::env::var(name).ok();
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let rabbitmq = match (given(&arguments.amqp_url), given(&arguments.management_url)) {
        (Some(amqp), management) => Some(
            RabbitmqSettings::from_urls(&amqp, management.as_deref())
                .and_then(|settings| settings.with_tls_of_environment(variable, read))
                .map_err(|error| usage("the default broker", error))?,
        ),
        (None, Some(_)) => {
            let message = "--management-url needs --amqp-url: slots are kept over AMQP";
            return Err(Failure::new(Failure::USAGE, message));
        }
        (None, None) => None,
    };
    let rabbitmq = match (rabbitmq, given(&arguments.admin_url)) {
        (Some(settings), Some(url)) => {
            let with = settings.with_administrator(&url, "--admin-url");
            Some(with.map_err(|error| usage("the default broker", error))?)
        }
        (rabbitmq, _) => rabbitmq,
    };
    // The URL as an argument goes before that of the environment; certificates are
    // the environment's in any case.
    let redis = given(&arguments.redis_url)
        .map(|url| {
            let lookup = |name: &str| match name {
                "REDIS_URL" => Some(url.clone()),
                _ => variable(name),
            };
            RedisSettings::from_environment(lookup, read)
        })
        .transpose()
        .map_err(|error| usage("the default Redis server", error))?;
    let election = LeaderElection {
        name: arguments.leader_election_id,
        namespace: arguments.leader_election_namespace.filter(|name| !name.is_empty()),
        lease_duration: arguments.lease_duration,
        renew_deadline: arguments.renew_deadline,
        retry_period: arguments.retry_period,
    };
    election.check().map_err(|error| Failure::new(Failure::USAGE, error.to_string()))?;
    Ok(Options {
        http_address: arguments.http_address,
        watch_namespaces: arguments
            .watch_namespace
            .into_iter()
            .filter(|name| !name.is_empty())
            .collect(),
        watch_labels: arguments.watch_label_selector.filter(|selector| !selector.is_empty()),
        rabbitmq,
        redis,
        rhythm: Rhythm {
            observe: arguments.observe_interval.min(arguments.drift_interval),
            drift: arguments.drift_interval,
            repair_idle: arguments.repair_idle,
        },
        default_names: if arguments.allow_any_name {
            DefaultNames::Any
        } else {
            DefaultNames::OfTheNamespace
        },
        limits: Limits {
            slots: arguments.max_slots_per_namespace,
            objects: arguments.max_objects_per_namespace,
        },
        leader_election: arguments.leader_elect.then_some(election),
        metrics_per_object: arguments.metrics_per_object,
    })
}
