//! `lockkeeper hold`: takes a slot, holds it until a signal, gives it back.

use std::time::Duration;

use super::telemetry::{self, LogFormat};
use super::{Failure, duration, signalled};
use crate::plan::connection::RabbitmqSettings;
use crate::plan::naming::LockName;
use crate::semaphore::{BrokerError, Held, HoldError, HoldOptions, Verdict, hold};

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

/// How often a holder looks whether its slot is draining.
const VERIFY_INTERVAL: Duration = Duration::from_secs(5);

/// Longer than anybody waits, and short enough to be added to any clock.
const FOR_EVER: Duration = Duration::from_hours(24 * 365 * 10);

pub(super) fn run(arguments: Arguments) -> Result<(), Failure> {
    telemetry::start(LogFormat::Text);
    let usage = |error: &dyn std::fmt::Display| Failure::new(Failure::USAGE, error.to_string());
    let lock = LockName::new(&arguments.lock).map_err(|error| usage(&error))?;
    let mut settings =
        RabbitmqSettings::from_urls(&arguments.url, None).map_err(|error| usage(&error))?;
    if let Some(vhost) = arguments.vhost {
        settings.vhost = vhost;
    }
    let options = HoldOptions {
        identity: arguments.identity.or_else(default_identity),
        reason: arguments.reason,
        url: arguments.link,
        heartbeat: arguments.heartbeat,
        ..HoldOptions::default()
    };
    let wait = if arguments.no_wait { None } else { Some(arguments.timeout.unwrap_or(FOR_EVER)) };
    // One thread would do, but a heartbeat must not wait for anything else.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::new(Failure::UNAVAILABLE, error.to_string()))?;
    runtime.block_on(async {
        let signal = signalled();
        tokio::pin!(signal);
        let held = tokio::select! {
            held = hold(&settings, &lock, &options, wait) => held.map_err(|e| not_acquired(&e))?,
            _ = &mut signal => {
                let message = format!("stopped while waiting for a slot of {lock}");
                return Err(Failure::new(Failure::NOT_ACQUIRED, message));
            }
        };
        let slot = held.slot();
        println!("holding slot {slot} of {lock}");
        tokio::select! {
            why = lost(&held, &lock) => Err(Failure::new(Failure::LOST, why)),
            _ = &mut signal => {
                held.release().await;
                println!("released slot {slot} of {lock}");
                Ok(())
            }
        }
    })
}

/// Watches over a held slot; ends when it is lost, with what to tell.
async fn lost(held: &Held, lock: &LockName) -> String {
    let slot = held.slot();
    let mut told = false;
    loop {
        tokio::select! {
            () = held.lost() => break,
            () = tokio::time::sleep(VERIFY_INTERVAL) => {}
        }
        match held.verify().await {
            Ok(Verdict::Lost) => break,
            Ok(Verdict::Draining) if !told => {
                told = true;
                eprintln!(
                    "lockkeeper: slot {slot} of {lock} is draining: the semaphore was made smaller; release it when you can"
                );
            }
            // Nobody knows for the moment; `lost` resolves in time.
            Ok(Verdict::Held | Verdict::Draining) | Err(_) => {}
        }
    }
    format!("slot {slot} of {lock} was lost: stop what it guards, somebody else may hold it now")
}

fn not_acquired(error: &HoldError) -> Failure {
    let code = match error {
        HoldError::NoSlots { .. } | HoldError::Full { .. } | HoldError::Contended { .. } => {
            Failure::NOT_ACQUIRED
        }
        HoldError::Broker(BrokerError::IncompatibleQueue { .. }) => Failure::USAGE,
        HoldError::Broker(_) => Failure::UNAVAILABLE,
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
