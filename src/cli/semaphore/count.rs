//! `lockkeeper semaphore count`: prints the number of slots, held slots and free slots.
//! `lockkeeper semaphore waiters`: lists the clients that wait.

use lockkeeper_plan::semaphore::Observed;
use serde::Serialize;

use super::target::{Form, LockOnBroker, SemaphoreTarget, failed};
use crate::cli::failure::Failure;
use crate::cli::output::{self, or_dash};
use crate::cli::waiters;

/// Arguments of `lockkeeper semaphore count` and `waiters`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: SemaphoreTarget,

    #[command(flatten)]
    form: Form,
}

#[derive(Serialize)]
struct Counted<'a> {
    name: &'a str,
    slots: u32,
    held: u32,
    free: u32,
    draining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u32>,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.which.find().await?;
    target.must_exist().await?;
    let seen = target.look().await?;
    print(&arguments.form, &target, &seen).await
}

/// Lists the waiters.
pub(super) async fn waiters(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.which.find().await?;
    target.must_exist().await?;
    show_waiters(&arguments.form, &target).await
}

/// Lists the waiters of a lock.
pub(in crate::cli) async fn show_waiters(
    form: &Form,
    target: &LockOnBroker,
) -> Result<(), Failure> {
    let (waiting, waiters) = waiters::ask(target).await?;
    waiters::show(form.output, target.found.name.as_str(), waiting, &waiters)
}

/// Prints the observed counts, also after a change.
pub(super) async fn print(
    form: &Form,
    target: &LockOnBroker,
    seen: &Observed,
) -> Result<(), Failure> {
    let name = &target.found.name;
    let waiting = target.broker.waiting(name).await.map_err(|error| failed(&error))?;
    let slots = seen.total();
    let counts = seen.counts(slots);
    let counted = Counted {
        name: name.as_str(),
        slots,
        held: counts.held,
        free: counts.free,
        draining: counts.draining,
        waiting,
    };
    let columns = [
        ("NAME", false),
        ("SLOTS", false),
        ("HELD", false),
        ("FREE", false),
        ("DRAINING", true),
        ("WAITING", true),
    ];
    let numbers =
        [counted.slots, counted.held, counted.free, counted.draining].map(|n| n.to_string());
    let row = [vec![counted.name.to_owned()], numbers.to_vec(), vec![or_dash(waiting)]].concat();
    output::print(form.output, &counted, &columns, &[row], "NAME")
}
