//! `lockkeeper apply`: applies manifests to servers, without Kubernetes, with the
//! operator's own code.

use lockkeeper_api::validate::{ValidQueue, ValidSemaphore};
use lockkeeper_plan::pressure_queue::{QueueEffect, residue};
use lockkeeper_plan::semaphore::Observed;
use lockkeeper_pressure::{Applied, Store};
use lockkeeper_semaphore::Broker;
use tokio_util::sync::CancellationToken;

use super::common::say;
use super::confirm::confirmed;
use super::failure::Failure;
use super::output::Format;
use super::plan::{Plan, Shown, Step, Wanted, Work, store_failed};
use super::semaphore::target::failed;
use super::validate::INVALID;

/// Arguments of `lockkeeper apply`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(flatten)]
    wanted: Wanted,

    /// Also remove slots that are held; holders keep theirs until they release
    #[arg(long)]
    allow_drain: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,

    /// Output format of the plan
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

const EXIT_CODES: &str = "\
Exit codes: 0 all objects match their manifests; 1 a manifest is invalid, can't be applied, or \
requires --allow-drain; 64 invalid usage; 69 a server is unreachable or rejects the request; 75 \
the answer was no and nothing was changed, or a change is not possible yet: try again later.

Locks and queues that are not in the manifests are never removed. To remove them, use `lockkeeper \
semaphore destroy` and `lockkeeper queue delete`.";

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let steps = arguments.wanted.steps().await?;
    let plan = Plan::of(steps.iter().map(|step| &step.shown));
    plan.print(arguments.output)?;
    plan.must_be_possible()?;
    if !plan.has_changes() {
        return Ok(());
    }
    if !arguments.allow_drain {
        let draining: Vec<String> = plan.draining().map(Shown::called).collect();
        if !draining.is_empty() {
            let message = format!(
                "nothing was changed: slots to be removed from {} are held. Pass --allow-drain to remove them; holders keep them until they release",
                draining.join(", ")
            );
            return Err(Failure::new(INVALID, message));
        }
    }
    let question = match plan.changes() {
        1 => "Make this change?".to_owned(),
        changes => format!("Make these {changes} changes?"),
    };
    if !arguments.yes && !confirmed(&question).await? {
        return Err(Failure::new(Failure::NOT_ACQUIRED, "nothing was changed"));
    }
    let mut result = Ok(());
    for step in &steps {
        if let Err(failure) = make(step).await {
            // A failure does not stop the other changes.
            if let Some(message) = &failure.message {
                say(format!("{}: {message}", step.shown.called()));
            }
            result = Err(Failure::silent(failure.code));
        }
    }
    result
}

async fn make(step: &Step) -> Result<(), Failure> {
    let called = step.shown.called();
    match &step.work {
        Work::Nothing => Ok(()),
        Work::Slots { broker, valid, sweep_to } => {
            make_slots(broker, valid, *sweep_to, &called).await
        }
        Work::Queue { store, valid, effects } => make_queue(store, valid, effects, &called).await,
    }
}

async fn make_slots(
    broker: &Broker,
    valid: &ValidSemaphore,
    sweep_to: u32,
    called: &str,
) -> Result<(), Failure> {
    let (lock, desired) = (&valid.lock, valid.desired);
    let done = broker.converge(lock, desired, sweep_to, true, &CancellationToken::new()).await;
    let done = done.map_err(|error| failed(&error))?;
    say(format!(
        "{called} has {} {}: {} added, {} removed",
        desired.slots,
        lock.unit().many(),
        done.declared,
        done.deleted
    ));
    if let (Observed::Counted(_), left @ 1..) = (&done.seen, done.left) {
        let message =
            format!("surplus tokens are still held: {left}. Apply again when they are released");
        return Err(Failure::new(Failure::NOT_ACQUIRED, message));
    }
    Ok(())
}

async fn make_queue(
    store: &Store,
    valid: &ValidQueue,
    effects: &[QueueEffect],
    called: &str,
) -> Result<(), Failure> {
    for effect in effects {
        let later = |message: String| Err(Failure::new(Failure::NOT_ACQUIRED, message));
        match store.apply(&valid.queue, effect).await.map_err(|error| store_failed(&error))? {
            Applied::Done | Applied::AlreadySo => {}
            Applied::Absent => {
                return later("it was deleted in the meantime: apply again".to_owned());
            }
            Applied::Residue { keys } => {
                return later(residue(&keys));
            }
            Applied::ProducerBusy { who } => {
                let who = who.unwrap_or_else(|| "another client".to_owned());
                return later(format!(
                    "{who} is producer, and it can't be closed before they are done: apply again"
                ));
            }
        }
    }
    say(format!("{called} is as its manifest says"));
    Ok(())
}
