//! `lockkeeper apply`: applies manifests to servers, without Kubernetes, with the
//! operator's own code.

use super::common::say;
use super::confirm::confirmed;
use super::failure::Failure;
use super::kinds::Step;
use super::output::Format;
use super::plan::{Plan, Shown, Wanted};

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
            return Err(Failure::new(Failure::INVALID, message));
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
    for Step { shown, work } in steps {
        let Some(work) = work else { continue };
        if let Err(failure) = work.await {
            // A failure does not stop the other changes.
            if let Some(message) = &failure.message {
                say(format!("{}: {message}", shown.called()));
            }
            result = Err(Failure::silent(failure.code));
        }
    }
    result
}
