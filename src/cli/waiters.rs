//! `lockkeeper waiters`: lists the clients that wait for a Semaphore, with their
//! identities if the broker provides them.

use serde::Serialize;

use super::common::say;
use super::failure::Failure;
use super::output::{self, Format, or_dash};
use super::semaphore::target::{FoundSemaphore, failed};
use super::target::{LockLocation, resource};
use crate::api::Semaphore;
use crate::cli::kubernetes::FoundObject;
use crate::semaphore::Waiter;

/// Arguments of `lockkeeper waiters`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Semaphore, as sem/NAME or NAME
    #[arg(value_name = "SEMAPHORE")]
    name: String,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    place: LockLocation,
}

#[derive(Serialize)]
struct Shown<'a> {
    /// `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u32>,
    waiters: Vec<ShownWaiter<'a>>,
}

#[derive(Serialize)]
struct ShownWaiter<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<&'a str>,
    priority: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let name = resource::<Semaphore>(&arguments.name).unwrap_or(&arguments.name);
    let found = arguments.place.kubernetes().find::<Semaphore>(name).await?;
    let (waiting, waiters) = match ask(&arguments.place, &found).await {
        Ok(answer) => answer,
        Err(failure) => {
            let why = failure.message.unwrap_or_default();
            say(format!("the waiters are not known, only how many the operator saw: {why}"));
            let waiting = found.object.status.and_then(|status| status.waiting);
            (waiting.and_then(|waiting| u32::try_from(waiting).ok()), Vec::new())
        }
    };
    match waiting {
        Some(1) => say(format!("1 client waits for sem/{name}")),
        Some(waiting) => say(format!("{waiting} clients wait for sem/{name}")),
        None => say(format!("how many wait for sem/{name} is not known")),
    }
    let shown = Shown {
        waiting,
        waiters: waiters
            .iter()
            .map(|waiter| ShownWaiter {
                id: &waiter.id,
                identity: waiter.identity.as_deref(),
                priority: waiter.priority,
                connection: waiter.connection.as_deref(),
                user: waiter.user.as_deref(),
            })
            .collect(),
    };
    let row = |waiter: &ShownWaiter| {
        vec![
            or_dash(waiter.identity),
            waiter.priority.to_string(),
            or_dash(waiter.user),
            or_dash(waiter.connection),
            waiter.id.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = shown.waiters.iter().map(row).collect();
    let columns = [
        ("IDENTITY", false),
        ("PRIORITY", false),
        ("USER", false),
        ("CONNECTION", false),
        ("ID", true),
    ];
    output::print(arguments.output, &shown, &columns, &rows, "ID")
}

/// Queries the broker.
async fn ask(
    place: &LockLocation,
    found: &FoundObject<Semaphore>,
) -> Result<(Option<u32>, Vec<Waiter>), Failure> {
    let target = FoundSemaphore::new(place.of_resource(found).await?);
    let name = &target.found.name;
    let waiting = target.broker.waiting(name).await.map_err(|error| failed(&error))?;
    let waiters = match target.broker.waiters(name).await {
        Ok(Some(waiters)) => waiters,
        Ok(None) => {
            if waiting != Some(0) {
                say(
                    "the identities of waiters are only available from the management API, and the connection has none",
                );
            }
            Vec::new()
        }
        Err(error) => {
            say(format!("the identities of waiters are unknown: {error}"));
            Vec::new()
        }
    };
    Ok((waiting, waiters))
}
