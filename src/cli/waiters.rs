//! `lockkeeper waiters`: lists the clients that wait for a Semaphore, with their
//! identities if the broker provides them.

use lockkeeper_api::Semaphore;
use lockkeeper_semaphore::Waiter;
use serde::Serialize;

use super::common::say;
use super::completion;
use super::failure::Failure;
use super::output::{self, Format, or_dash};
use super::semaphore::target::{LockOnBroker, failed};
use super::target::{LockLocation, resource};

/// Arguments of `lockkeeper waiters`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Semaphore, as sem/NAME or NAME
    #[arg(value_name = "SEMAPHORE", add = completion::semaphores())]
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
    let answer = match arguments.place.of_resource(&found).await {
        Ok(lock) => ask(&LockOnBroker::new(lock)).await,
        Err(failure) => Err(failure),
    };
    let (waiting, waiters) = answer.unwrap_or_else(|failure| {
        let why = failure.message.unwrap_or_default();
        say(format!("the waiters are not known, only how many the operator saw: {why}"));
        let waiting = found.object.status.and_then(|status| status.waiting);
        (waiting.and_then(|waiting| u32::try_from(waiting).ok()), Vec::new())
    });
    show(arguments.output, &format!("sem/{name}"), waiting, &waiters)
}

/// Prints the waiters of a semaphore.
pub(super) fn show<'a>(
    format: Format,
    name: &str,
    waiting: Option<u32>,
    waiters: &'a [Waiter],
) -> Result<(), Failure> {
    match waiting {
        Some(1) => say(format!("1 client waits for {name}")),
        Some(waiting) => say(format!("{waiting} clients wait for {name}")),
        None => say(format!("how many wait for {name} is not known")),
    }
    let one = |waiter: &'a Waiter| ShownWaiter {
        id: &waiter.id,
        identity: waiter.identity.as_deref(),
        priority: waiter.priority,
        connection: waiter.connection.as_deref(),
        user: waiter.user.as_deref(),
    };
    let shown = Shown { waiting, waiters: waiters.iter().map(one).collect() };
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
    output::print(format, &shown, &columns, &rows, "ID")
}

/// Queries the broker.
pub(super) async fn ask(target: &LockOnBroker) -> Result<(Option<u32>, Vec<Waiter>), Failure> {
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
