//! `lockkeeper semaphore revoke`: revokes a slot or token from its holder, without
//! Kubernetes. `lockkeeper mutex revoke` does the same to a mutex. See `lockkeeper revoke` for the slots of a resource, which the operator
//! revokes.

use std::time::{Duration, Instant};

use lockkeeper_plan::clean_text;
use lockkeeper_plan::semaphore::{DesiredSlots, Holder};
use lockkeeper_semaphore::{Revocation, RevokeError};
use tokio_util::sync::CancellationToken;

use super::holders::live;
use super::target::{LockOnBroker, SemaphoreTarget, failed};
use crate::cli::common::{say, shown_text};
use crate::cli::confirm::confirmed;
use crate::cli::failure::Failure;
use crate::cli::revoke;
use crate::cli::target::FoundLock;

/// Arguments of `lockkeeper semaphore revoke`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: SemaphoreTarget,

    /// Number of the slot; omit with protocol Token
    #[arg(long, value_name = "NUMBER", help_heading = None)]
    slot: Option<u32>,

    #[command(flatten)]
    how: How,
}

/// The holder and how to revoke it.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct How {
    /// Id of the holder, as listed by the verb `holders` with `-o wide`; no other holder is
    /// revoked
    #[arg(long, value_name = "ID", help_heading = None)]
    holder: String,

    /// Reason, passed to the holder
    #[arg(long, value_name = "TEXT", help_heading = None, value_parser = shown_text())]
    reason: String,

    /// URL of the broker's management API with an administrator's credentials, which may
    /// close the holder's connection. Required, except for a semaphore of protocol ExclusiveConsumer
    #[arg(long, env = "RABBITMQ_ADMIN_URL", hide_env_values = true, value_name = "URL", help_heading = None)]
    admin_url: Option<String>,

    /// Revoke even if the holder's connection has other resources, which are
    /// then lost too
    #[arg(long, help_heading = None)]
    force: bool,

    /// Do not ask for confirmation
    #[arg(long, short, help_heading = None)]
    yes: bool,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { which, slot, how } = arguments;
    let target = which.find_to_change("lockkeeper revoke").await?;
    revoke::must_name_slot(target.found.name.has_slots(), slot)?;
    target.must_exist().await?;
    perform(target.found, slot, how).await
}

/// Revokes the slot, token or mutex from its holder.
pub(in crate::cli) async fn perform(
    mut found: FoundLock,
    slot: Option<u32>,
    how: How,
) -> Result<(), Failure> {
    let How { holder, reason, admin_url, force, yes } = how;
    let usage = |message: &str| Failure::new(Failure::USAGE, message);
    if let Some(url) = admin_url.filter(|url| !url.is_empty()) {
        let settings = found.settings.with_administrator(&url, "--admin-url");
        found.settings = settings.map_err(|error| usage(&error.to_string()))?;
    }
    let target = LockOnBroker::new(found);
    let held = live(&target).await?;
    let what = target.found.what(slot);
    let Some(found) = held.iter().find(|held| held.id == holder && held.slot == slot) else {
        return Err(usage(&not_held(&what, &held)));
    };
    let whose = found.identity.as_ref().map(|who| format!(" ({who})")).unwrap_or_default();
    let holder = clean_text(&holder, 200);
    if !yes && !confirmed(&format!("Take {what} from {holder}{whose}?")).await? {
        return Err(Failure::new(Failure::NOT_ACQUIRED, "nothing was changed"));
    }
    let known_for = Duration::ZERO;
    let asked = Revocation { slot, holder: found.id.clone(), reason, force, known_for };
    take(&target, asked).await?;
    say(format!("{what} was taken from {holder}{whose}"));
    Ok(())
}

/// Revokes the slot. Tries again while the holder is not known for certain.
async fn take(target: &LockOnBroker, mut asked: Revocation) -> Result<(), Failure> {
    let name = &target.found.name;
    let started = Instant::now();
    loop {
        asked.known_for = started.elapsed();
        let desired = DesiredSlots::new(target.look().await?.size());
        let stop = CancellationToken::new();
        let error = match target.broker.revoke(name, desired, &asked, &stop).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let code = match &error {
            RevokeError::Unsure { .. } if started.elapsed() < Revocation::RETRY_FOR => {
                tokio::time::sleep(Revocation::RETRY_INTERVAL).await;
                continue;
            }
            RevokeError::Broker(error) => return Err(failed(error)),
            RevokeError::NotHeld | RevokeError::NoAdministrator | RevokeError::OwnsMore { .. } => {
                Failure::USAGE
            }
            _ => Failure::UNAVAILABLE,
        };
        let what = target.found.what(asked.slot);
        return Err(Failure::new(code, format!("{what} was not revoked: {error}")));
    }
}

/// Describes the actual holders.
fn not_held(what: &str, held: &[Holder]) -> String {
    let listed = held.iter().take(10).map(|holder| (holder.slot, holder.id.as_str()));
    let listed = if held.is_empty() { "nothing".to_owned() } else { revoke::listed(listed) };
    format!("{what} is not held by that holder; held are: {listed}")
}
