//! `lockkeeper operator`: flags, environment and signals. See [`crate::operator`] for the
//! operator itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_api::validate::DefaultRules;
use lockkeeper_plan::connection::SettingsError;
use lockkeeper_plan::quota::Limits;
use tokio_util::sync::CancellationToken;

use super::common::{duration, runtime};
use super::failure::Failure;
use super::signals::{INTERRUPTING, Signals};
use super::telemetry::{self, LogFormat};
use crate::operator::context::Intervals;
use crate::operator::defaults::DefaultSources;
use crate::operator::leader::LeaderElection;
use crate::operator::{Options, run as run_operator};

/// Arguments of `lockkeeper operator`.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Arguments {
    /// Address on which /healthz, /readyz and /metrics are served
    #[arg(long, env = "LOCKKEEPER_HTTP_ADDRESS", default_value = "127.0.0.1:8080")]
    http_address: SocketAddr,

    /// Watch only this namespace instead of all; repeat the option or separate names by
    /// commas to watch several
    #[arg(
        long,
        env = "LOCKKEEPER_WATCH_NAMESPACE",
        value_name = "NAMESPACE",
        value_delimiter = ','
    )]
    watch_namespace: Vec<String>,

    /// Watch only objects that match this label selector, for example
    /// team=media,stage!=test
    #[arg(long, env = "LOCKKEEPER_WATCH_LABEL_SELECTOR", value_name = "SELECTOR")]
    watch_label_selector: Option<String>,

    /// Default broker, for Semaphores that specify none, for example
    /// amqp://user:password@host:5672/vhost. amqps:// and https:// use TLS with the files
    /// given by RABBITMQ_TLS_CA_FILE, RABBITMQ_TLS_CERT_FILE and RABBITMQ_TLS_KEY_FILE
    #[arg(long, env = "AMQP_URL", hide_env_values = true, value_name = "URL")]
    amqp_url: Option<String>,

    /// Management API of the default broker, for example http://user:password@host:15672
    #[arg(long, env = "RABBITMQ_MANAGEMENT_URL", hide_env_values = true, value_name = "URL")]
    management_url: Option<String>,

    /// Management API of the default broker with an administrator's credentials, required
    /// to revoke slots, for example http://user:password@host:15672
    #[arg(long, env = "RABBITMQ_ADMIN_URL", hide_env_values = true, value_name = "URL")]
    admin_url: Option<String>,

    /// Default Redis server, for PressureQueues that specify none, for example
    /// redis://user:password@host:6379/0. rediss:// uses TLS with the files given by
    /// REDIS_TLS_CA_FILE, REDIS_TLS_CERT_FILE and REDIS_TLS_KEY_FILE
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    redis_url: Option<String>,

    /// Directory with these URLs as files, for example a mounted Secret: amqpUrl,
    /// managementUrl, adminUrl and redisUrl, each optional. The files may be created and
    /// changed at any time. A URL given by an option or the environment takes precedence
    /// over its file
    #[arg(long, env = "LOCKKEEPER_CONNECTIONS_DIR", value_name = "DIR")]
    connections_dir: Option<PathBuf>,

    /// Maximum time between two observations of holders and queues
    #[arg(long, env = "LOCKKEEPER_OBSERVE_INTERVAL", default_value = "10s", value_parser = interval)]
    observe_interval: Duration,

    /// Maximum time until missing and surplus slots are repaired
    #[arg(long, env = "LOCKKEEPER_DRIFT_INTERVAL", default_value = "30s", value_parser = interval)]
    drift_interval: Duration,

    /// Time without activity on a queue before damage left by a dead client is repaired
    #[arg(long, env = "LOCKKEEPER_REPAIR_IDLE", default_value = "30s", value_parser = interval)]
    repair_idle: Duration,

    /// On the default connections, allow names that belong to other namespaces (only if
    /// all namespaces trust each other)
    #[arg(long, env = "LOCKKEEPER_ALLOW_ANY_NAME")]
    allow_any_name: bool,

    /// On the default connections, allow spec.vhost and spec.redisReference.database
    /// (only if all namespaces trust each other)
    #[arg(long, env = "LOCKKEEPER_ALLOW_ANY_VHOST")]
    allow_any_vhost: bool,

    /// Maximum total number of slots of the Semaphores of a namespace; the oldest
    /// Semaphores take precedence [default: no limit]
    #[arg(long, env = "LOCKKEEPER_MAX_SLOTS_PER_NAMESPACE", value_name = "NUMBER")]
    max_slots_per_namespace: Option<u32>,

    /// Maximum number of Semaphores of a namespace, and of PressureQueues; the oldest
    /// take precedence [default: no limit]
    #[arg(long, env = "LOCKKEEPER_MAX_OBJECTS_PER_NAMESPACE", value_name = "NUMBER")]
    max_objects_per_namespace: Option<u32>,

    /// Act only while holding a Lease, so that one of several replicas is active
    #[arg(long, env = "LOCKKEEPER_LEADER_ELECT")]
    leader_elect: bool,

    /// Name of the Lease
    #[arg(
        long,
        env = "LOCKKEEPER_LEADER_ELECTION_ID",
        default_value = "lockkeeper",
        value_name = "NAME"
    )]
    leader_election_id: String,

    /// Namespace of the Lease [default: the namespace of the operator]
    #[arg(long, env = "LOCKKEEPER_LEADER_ELECTION_NAMESPACE", value_name = "NAMESPACE")]
    leader_election_namespace: Option<String>,

    /// Time since its last renewal after which an unresponsive leader is replaced
    #[arg(long, env = "LOCKKEEPER_LEASE_DURATION", default_value = "15s", value_parser = interval)]
    lease_duration: Duration,

    /// Time that the leader acts without renewing the Lease; after that, the operator
    /// exits
    #[arg(long, env = "LOCKKEEPER_RENEW_DEADLINE", default_value = "10s", value_parser = interval)]
    renew_deadline: Duration,

    /// Interval at which the leader renews the Lease and the other replicas check it
    #[arg(long, env = "LOCKKEEPER_RETRY_PERIOD", default_value = "2s", value_parser = interval)]
    retry_period: Duration,

    /// Whether /metrics has series for each object; with --metrics-per-object=false it
    /// has only sums
    #[arg(long, env = "LOCKKEEPER_METRICS_PER_OBJECT", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    metrics_per_object: bool,

    /// Format of log lines
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
    let mut signals = Signals::listen(&INTERRUPTING)?;
    let _telemetry = telemetry::start(arguments.log_format);
    let options = options(arguments)?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let on_signal = stop.clone();
        tokio::spawn(async move {
            signals.next().await;
            tracing::info!("stopping");
            on_signal.cancel();
        });
        Box::pin(run_operator(options, stop))
            .await
            .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))
    })
}

fn options(arguments: Arguments) -> Result<Options, Failure> {
    let defaults = DefaultSources {
        amqp_url: arguments.amqp_url.map(Into::into),
        management_url: arguments.management_url.map(Into::into),
        admin_url: arguments.admin_url.map(Into::into),
        redis_url: arguments.redis_url.map(Into::into),
        directory: arguments.connections_dir.filter(|path| !path.as_os_str().is_empty()),
    };
    // Files may be created and changed later, but options are fixed and can be checked
    // now.
    if defaults.directory.is_none() {
        let usage = |what: &str, error: SettingsError| {
            Failure::new(Failure::USAGE, format!("{what}: {error}"))
        };
        defaults.rabbitmq().map_err(|error| usage("the default broker", error))?;
        defaults.redis().map_err(|error| usage("the default Redis server", error))?;
    }
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
        defaults,
        intervals: Intervals {
            observe: arguments.observe_interval.min(arguments.drift_interval),
            drift: arguments.drift_interval,
            repair_idle: arguments.repair_idle,
        },
        default_rules: DefaultRules {
            any_name: arguments.allow_any_name,
            any_place: arguments.allow_any_vhost,
        },
        limits: Limits {
            slots: arguments.max_slots_per_namespace,
            objects: arguments.max_objects_per_namespace,
        },
        leader_election: arguments.leader_elect.then_some(election),
        metrics_per_object: arguments.metrics_per_object,
    })
}
