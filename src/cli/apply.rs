//! `lockkeeper apply`: makes servers as manifests say, without Kubernetes, with
//! what the operator makes them with.

use tokio_util::sync::CancellationToken;

use super::output::Format;
use super::plan::{Plan, Shown, Step, Wanted, Work, store_failed};
use super::question::confirmed;
use super::semaphore::failed;
use super::validate::INVALID;
use super::{Failure, say};
use crate::api::validate::{ValidQueue, ValidSemaphore};
use crate::plan::pressure_queue::QueueEffect;
use crate::pressure::{Applied, Store};
use crate::semaphore::Broker;

/// Arguments of `lockkeeper apply`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(flatten)]
    wanted: Wanted,

    /// Remove slots that are held, too: who holds one keeps it until they release it
    #[arg(long)]
    allow_drain: bool,

    /// Don't ask
    #[arg(long, short)]
    yes: bool,

    /// The form in which the plan is shown
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

const EXIT_CODES: &str = "\
Exit codes: 0 all objects are as their manifests say; 1 a manifest is not valid, can't be made true, \
or needs --allow-drain; 64 wrong usage; 69 a server can't be reached, or refuses; 75 nothing was \
changed because the answer was no, or something could not be changed yet: try again later.

What is not in the manifests is left alone: nothing is removed for that. `lockkeeper semaphore \
destroy` and `lockkeeper queue delete` remove.";

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let steps = arguments.wanted.steps().await?;
    let plan = Plan::of(&steps);
    plan.print(arguments.output)?;
    plan.must_be_possible()?;
    if !plan.has_changes() {
        return Ok(());
    }
    if !arguments.allow_drain {
        let draining: Vec<String> = plan.draining().map(Shown::called).collect();
        if !draining.is_empty() {
            let message = format!(
                "nothing was changed: slots of {} that are to go are held; --allow-drain removes them, and their holders keep them until they release",
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
            // The others are made all the same.
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
    let (lock, wish) = (&valid.lock, valid.wish);
    let done = broker.converge(lock, wish, sweep_to, true, &CancellationToken::new()).await;
    let done = done.map_err(|error| failed(&error))?;
    let what = if lock.has_slots() { "slots" } else { "tokens" };
    say(format!(
        "{called} has {} {what}: {} added, {} removed",
        wish.slots, done.declared, done.deleted
    ));
    if done.left > 0 && !lock.has_slots() {
        let left = done.left;
        let message =
            format!("{left} tokens too many are held: apply again when they are released");
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
            Applied::Absent => return later("it was deleted meanwhile: apply again".to_owned()),
            Applied::Residue { keys } => {
                let keys = keys.join(" ");
                return later(format!(
                    "{keys} left over from a deletion: queue delete takes that up"
                ));
            }
            Applied::ProducerBusy { who } => {
                let who = who.unwrap_or_else(|| "somebody".to_owned());
                return later(format!(
                    "{who} is producer, and it can't be closed before they are done: apply again"
                ));
            }
        }
    }
    say(format!("{called} is as its manifest says"));
    Ok(())
}
