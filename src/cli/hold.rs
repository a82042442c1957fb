//! `lockkeeper hold`: takes a slot, holds it until a signal, gives it back.

use std::time::Duration;

use super::telemetry::{self, LogFormat};
use super::{Failure, duration, signalled};
use crate::plan::connection::RabbitmqSettings;
use crate::plan::naming::LockName;
use crate::semaphore::{AcquireError, AcquireOptions, BrokerError, Client, ClientOptions};

/// Arguments of `lockkeeper hold`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The lock's name on the broker, such as default.deploy
    lock: String,

    /// The broker: amqp://user:password@host:5672/vhost
    #[arg(long, env = "AMQP_URL", hide_env_values = true)]
    url: String,

    /// The virtual host, instead of the URL's
    #[arg(long)]
    vhost: Option<String>,

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

    /// The AMQP heartbeat: a holder that falls silent loses its slot after two to three of them
    #[arg(long, default_value = "10s", value_parser = heartbeat)]
    heartbeat: Duration,
}

fn heartbeat(text: &str) -> Result<Duration, String> {
    let heartbeat = duration(text)?;
    if !(1..=300).contains(&heartbeat.as_secs()) {
        return Err("a heartbeat is from 1s to 5m".to_owned());
    }
    Ok(heartbeat)
}

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    telemetry::start(LogFormat::Text);
    let usage = |error: &dyn std::fmt::Display| Failure::new(Failure::USAGE, error.to_string());
    let lock = LockName::new(&arguments.lock).map_err(|error| usage(&error))?;
    let mut settings =
        RabbitmqSettings::from_urls(&arguments.url, None).map_err(|error| usage(&error))?;
    if let Some(vhost) = arguments.vhost {
        settings.vhost = vhost;
    }
    let options = AcquireOptions {
        identity: arguments.identity.or_else(default_identity),
        reason: arguments.reason,
        url: arguments.link,
        ..AcquireOptions::default()
    };
    let client = ClientOptions { heartbeat: arguments.heartbeat, warm: 0, ..Default::default() };
    // One thread would do, but a heartbeat must not wait for anything else.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    runtime.block_on(async {
        let client = Client::new(settings, client);
        let held = client.semaphore(lock.clone());
        let signal = signalled();
        tokio::pin!(signal);
        let acquire = async {
            match (arguments.no_wait, arguments.timeout) {
                (true, _) => held.try_acquire(&options).await,
                (false, Some(limit)) => held.acquire_timeout(&options, limit).await,
                (false, None) => held.acquire(&options).await,
            }
        };
        let permit = tokio::select! {
            permit = acquire => permit.map_err(|error| not_acquired(&error))?,
            _ = &mut signal => {
                let message = format!("stopped while waiting for a slot of {lock}");
                return Err(Failure::new(Failure::NOT_ACQUIRED, message));
            }
        };
        let slot = permit.slot().unwrap_or_default();
        println!("holding slot {slot} of {lock}");
        let mut told = false;
        loop {
            tokio::select! {
                reason = permit.lost() => {
                    let message = format!("slot {slot} of {lock} was lost: {reason}. Stop what it guards, somebody else may hold it now");
                    return Err(Failure::new(Failure::LOST, message));
                }
                () = permit.draining(), if !told => {
                    told = true;
                    eprintln!(
                        "lockkeeper: slot {slot} of {lock} is draining: the semaphore was made smaller; release it when you can"
                    );
                }
                _ = &mut signal => break,
            }
        }
        // Lost in the same moment: there is nothing left to say.
        let _ = permit.release().await;
        client.close().await;
        println!("released slot {slot} of {lock}");
        Ok(())
    })
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
