//! Taking a lock as `exec` and `hold` do: who asks, for how long, how it is
//! said while it waits, and which exit code a refusal has.

use std::time::Duration;

use tracing::{Instrument, debug_span, field};

use super::target::{Found, Target};
use super::waiting::Waiting;
use super::{Failure, duration};
use crate::semaphore::{AcquireError, AcquireOptions, BrokerError, Client, ClientOptions, Permit};

/// How a lock is asked for.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "How it is asked for")]
pub(super) struct Acquire {
    /// Who holds the slot, shown to everybody who looks [default: user@host]
    #[arg(long, value_name = "WHO")]
    identity: Option<String>,

    /// Why it is held, shown to everybody who looks
    #[arg(long, value_name = "WHY")]
    reason: Option<String>,

    /// Where to read more, such as a build's page
    #[arg(long, value_name = "URL")]
    link: Option<String>,

    /// Give up when no slot was free for this long [default: wait for ever]
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    timeout: Option<Duration>,

    /// Give up at once when no slot is free
    #[arg(long)]
    no_wait: bool,

    /// Who waits gets a slot before those with a lower number, 0 to 255
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    priority: u8,

    /// The AMQP heartbeat: a holder that falls silent loses its slot after two to three of them
    #[arg(long, default_value = "10s", value_parser = heartbeat)]
    heartbeat: Duration,

    /// Say nothing while waiting
    #[arg(long, short)]
    pub quiet: bool,
}

fn heartbeat(text: &str) -> Result<Duration, String> {
    let heartbeat = duration(text)?;
    if !(1..=300).contains(&heartbeat.as_secs()) {
        return Err("a heartbeat is from 1s to 5m".to_owned());
    }
    Ok(heartbeat)
}

impl Acquire {
    /// Finds the lock and takes it. Cancel safe: nothing is held then.
    pub async fn take(&self, target: &Target) -> Result<(Found, Client, Permit), Failure> {
        let found = target.find().await?;
        let client = self.client(&found);
        let span = debug_span!(
            "lock.acquire",
            lock.name = found.name.as_str(),
            lock.acquired = field::Empty,
            lock.slot = field::Empty,
        );
        let acquired = self.acquire(&client, &found).instrument(span.clone()).await;
        span.record("lock.acquired", acquired.is_ok());
        let permit = acquired?;
        span.record("lock.slot", permit.slot());
        Ok((found, client, permit))
    }

    /// A client of the lock's broker. Connects nothing.
    fn client(&self, found: &Found) -> Client {
        let options = ClientOptions {
            heartbeat: self.heartbeat,
            // One lock is all that this process wants.
            warm: 0,
            ..ClientOptions::default()
        };
        Client::new(found.settings.clone(), options)
    }

    async fn acquire(&self, client: &Client, found: &Found) -> Result<Permit, Failure> {
        let lock = found.lock(client);
        let options = AcquireOptions {
            identity: self.identity.clone().or_else(default_identity),
            reason: self.reason.clone(),
            url: self.link.clone(),
            priority: self.priority,
            lock_delay: found.lock_delay,
            ..AcquireOptions::default()
        };
        let acquire = async {
            match (self.no_wait, self.timeout) {
                (true, _) => lock.try_acquire(&options).await,
                (false, Some(timeout)) => lock.acquire_timeout(&options, timeout).await,
                (false, None) => lock.acquire(&options).await,
            }
        };
        let waiting = Waiting::new(found, self.quiet);
        let permit = tokio::select! {
            permit = acquire => permit.map_err(|error| not_acquired(&error))?,
            never = waiting.show() => match never {},
        };
        waiting.ended(permit.slot());
        Ok(permit)
    }
}

fn not_acquired(error: &AcquireError) -> Failure {
    let code = match error {
        AcquireError::Broker(BrokerError::IncompatibleQueue { .. }) => Failure::USAGE,
        AcquireError::Broker(_) => Failure::UNAVAILABLE,
        _ => Failure::NOT_ACQUIRED,
    };
    Failure::new(code, error.to_string())
}

/// `$USER@host`, as far as known. In a pod the host is the pod's name.
fn default_identity() -> Option<String> {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok();
    let host = std::fs::read_to_string("/etc/hostname").ok().map(|name| name.trim().to_owned());
    match (user, host.filter(|host| !host.is_empty())) {
        (Some(user), Some(host)) => Some(format!("{user}@{host}")),
        (Some(name), None) | (None, Some(name)) => Some(name),
        (None, None) => None,
    }
}
