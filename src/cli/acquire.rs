//! Acquires a lock for `exec` and `hold`: options, progress messages, and exit codes of
//! failures.

use std::time::{Duration, Instant};

use lockkeeper_semaphore::{
    AcquireError, AcquireOptions, BrokerError, Client, ClientOptions, Moment, Permit, Wait,
    until_ended,
};
use tracing::{Instrument, debug_span, field};

use super::common::{duration, shown_text};
use super::failure::Failure;
use super::semaphore::target::missing;
use super::target::{FoundLock, LockTarget};
use super::waiting::Waiting;
use super::within::within;

/// Maximum time that a stopping process waits for the broker's answer to a claim that was
/// given up.
pub(super) const GIVEN_UP: Duration = Duration::from_secs(1);

/// Maximum time for Kubernetes, and then for the broker, to answer a client that does not
/// wait.
const NO_WAIT: Duration = Duration::from_secs(5);

/// How a lock is acquired.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Acquisition")]
pub(super) struct Acquire {
    /// Identity of the holder, visible to all users of the lock; truncated to 500 bytes
    /// [default: user@host]
    #[arg(long, value_name = "WHO", value_parser = shown_text())]
    identity: Option<String>,

    /// Reason for holding the lock, visible to all users of the lock; truncated to 500
    /// bytes
    #[arg(long, value_name = "WHY", value_parser = shown_text())]
    reason: Option<String>,

    /// URL with more information, for example to the page of a build; truncated to 500
    /// bytes
    #[arg(long, value_name = "URL", value_parser = shown_text())]
    link: Option<String>,

    /// Give up if no slot is acquired within this time. Connecting counts too, but is
    /// allowed 3s at least. So does the lock delay of a slot whose last holder crashed: a
    /// shorter timeout gives up and leaves the remainder to the next client [default: no
    /// limit]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    timeout: Option<Duration>,

    /// Do not wait for other holders: give up if no slot is free, or if the broker does not
    /// answer within 5s. The lock delay of a free slot whose last holder crashed is still
    /// waited for; use --timeout to limit that
    #[arg(long)]
    no_wait: bool,

    /// Exit code if the lock was not acquired in time, 0 to 255. Distinguishes that from a
    /// command that exits with 75
    #[arg(long, short = 'E', value_name = "NUMBER", default_value_t = Failure::NOT_ACQUIRED)]
    conflict_exit_code: u8,

    /// Priority while waiting, 0 to 255; higher priorities are served first. Not for queues
    /// of amqp-locks-python, whose clients poll
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    priority: u8,

    /// Acquire a free slot even if other clients wait for it, instead of waiting behind
    /// them
    #[arg(long)]
    barge: bool,

    /// AMQP heartbeat interval, 1s to 5m; an unresponsive holder loses its slot after two
    /// to three intervals
    #[arg(long, default_value = "10s", value_parser = heartbeat)]
    heartbeat: Duration,

    /// Print nothing while waiting
    #[arg(long, short)]
    pub quiet: bool,
}

/// Parses a heartbeat interval.
pub(super) fn heartbeat(text: &str) -> Result<Duration, String> {
    let heartbeat = duration(text)?;
    if !(1..=300).contains(&heartbeat.as_secs()) {
        return Err("a heartbeat is from 1s to 5m".to_owned());
    }
    Ok(heartbeat)
}

impl Acquire {
    /// Finds the lock and acquires it. Cancel safe: if cancelled, nothing is held.
    pub async fn take(&self, target: &LockTarget) -> Result<(FoundLock, Client, Permit), Failure> {
        let taken = Box::pin(self.try_take(target)).await;
        taken.map_err(|failure| match failure.code {
            Failure::NOT_ACQUIRED => Failure { code: self.conflict_exit_code, ..failure },
            _ => failure,
        })
    }

    async fn try_take(&self, target: &LockTarget) -> Result<(FoundLock, Client, Permit), Failure> {
        let started = Instant::now();
        let limit = if self.no_wait { Some(NO_WAIT) } else { self.timeout };
        let found = within(limit, "Kubernetes", find(target.clone())).await?;
        if self.priority > 0 && !found.has_order() {
            let message = format!(
                "{} has no wait queue: its clients poll, and a priority has no effect. Omit --priority",
                found.name
            );
            return Err(Failure::new(Failure::USAGE, message));
        }
        let client = self.client(&found);
        let span = debug_span!(
            "lock.acquire",
            lock.name = found.name.as_str(),
            lock.acquired = field::Empty,
            lock.slot = field::Empty,
        );
        let wait = match (self.no_wait, self.timeout) {
            (true, _) => Wait::No,
            (false, Some(timeout)) => {
                Wait::Until(Moment::now() + timeout.saturating_sub(started.elapsed()))
            }
            (false, None) => Wait::Forever,
        };
        let acquired = self.acquire(&client, &found, wait).instrument(span.clone()).await;
        span.record("lock.acquired", acquired.is_ok());
        if acquired.is_err() {
            until_ended(GIVEN_UP).await;
        }
        let permit = acquired?;
        span.record("lock.slot", permit.slot());
        Ok((found, client, permit))
    }

    /// Returns the identity that other users of the lock see.
    pub fn identity(&self) -> Option<String> {
        self.identity.clone().or_else(default_identity)
    }

    /// Creates a client of the lock's broker. Does not connect.
    fn client(&self, found: &FoundLock) -> Client {
        let defaults = ClientOptions::default();
        let connect_timeout = if self.no_wait { NO_WAIT } else { defaults.connect_timeout };
        // This process acquires only one lock.
        let options = defaults.with_warm(0).with_heartbeat(self.heartbeat);
        Client::new(found.settings.clone(), options.with_connect_timeout(connect_timeout))
    }

    async fn acquire(
        &self,
        client: &Client,
        found: &FoundLock,
        wait: Wait,
    ) -> Result<Permit, Failure> {
        let lock = found.lock(client);
        let mut options = AcquireOptions::default();
        options.identity = self.identity();
        options.reason.clone_from(&self.reason);
        options.url.clone_from(&self.link);
        options.priority = self.priority;
        options.barge = self.barge;
        options.lock_delay = found.lock_delay;
        let waiting = Waiting::new(found, self.quiet);
        let report = |error: &AcquireError| waiting.survived(error);
        let acquiring = lock.acquire_through_outages(&options, wait, &report);
        let permit = tokio::select! {
            permit = acquiring => permit,
            never = waiting.show() => match never {},
        };
        if let Err(AcquireError::Full { .. }) = &permit {
            waiting.was_in_vain().await;
        }
        let permit = permit.map_err(|error| not_acquired(&error))?;
        waiting.ended(permit.slot());
        Ok(permit)
    }
}

/// Finds the lock, in a task of its own: a program that the kubeconfig names for the login
/// blocks the task that runs it.
async fn find(target: LockTarget) -> Result<FoundLock, Failure> {
    let finding = tokio::spawn(async move { target.find().await }.in_current_span());
    finding.await.map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?
}

fn not_acquired(error: &AcquireError) -> Failure {
    let code = match error {
        AcquireError::Missing { lock } => return missing(lock),
        AcquireError::Broker(
            BrokerError::IncompatibleQueue { .. } | BrokerError::ProtocolMismatch { .. },
        ) => Failure::USAGE,
        AcquireError::Broker(_) => Failure::UNAVAILABLE,
        _ => Failure::NOT_ACQUIRED,
    };
    Failure::new(code, error.to_string())
}

/// Returns `$USER@host`, as far as known. In a pod the host is the pod's name.
fn default_identity() -> Option<String> {
    let user = std::env::var_os("USER").or_else(|| std::env::var_os("LOGNAME"));
    let user = user.map(|user| user.to_string_lossy().into_owned());
    let host = std::fs::read_to_string("/etc/hostname").ok().map(|name| name.trim().to_owned());
    match (user, host.filter(|host| !host.is_empty())) {
        (Some(user), Some(host)) => Some(format!("{user}@{host}")),
        (Some(name), None) | (None, Some(name)) => Some(name),
        (None, None) => None,
    }
}
