//! `lockkeeper plan`: shows what manifests would change on their servers, without
//! Kubernetes. See `kinds` for the comparison and `render` for the output.

mod render;
mod servers;

use std::collections::HashMap;

pub(super) use self::render::{Action, Plan, Shown};
pub(super) use self::servers::Resolver;
use self::servers::Servers;
use super::common::say;
use super::failure::Failure;
use super::kinds::{Object, Step};
use super::manifest::{Checker, Files, Manifest, Unreadable};
use super::output::Format;

/// Arguments of `lockkeeper plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(flatten)]
    wanted: Wanted,

    /// Exit with 2 if there are changes, and with 1 on any error
    #[arg(long)]
    detailed_exitcode: bool,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

const EXIT_CODES: &str = "\
Exit codes: 0 success, with or without changes; 1 a manifest is invalid or can't be applied; 64 \
invalid usage; 69 a server is unreachable or rejects the request. With --detailed-exitcode: 0 no \
changes; 1 any error; 2 there are changes.";

/// Exit code if there are changes.
const CHANGES: u8 = 2;

/// The desired objects and their servers.
#[derive(Debug, clap::Args)]
pub(super) struct Wanted {
    #[command(flatten)]
    files: Files,

    /// Namespace of objects that specify none; the default names of locks and queues
    /// start with it
    #[arg(long, short, default_value = "default")]
    namespace: String,

    #[command(flatten)]
    servers: Servers,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let result = plan(&arguments).await;
    match result {
        Ok(true) if arguments.detailed_exitcode => Err(Failure::silent(CHANGES)),
        Ok(_) => Ok(()),
        Err(failure) if arguments.detailed_exitcode && failure.code != Failure::USAGE => {
            Err(Failure { code: 1, ..failure })
        }
        Err(failure) => Err(failure),
    }
}

/// Shows the plan. Returns whether there are changes.
async fn plan(arguments: &Arguments) -> Result<bool, Failure> {
    let steps = arguments.wanted.steps().await?;
    let plan = Plan::of(steps.iter().map(|step| &step.shown));
    plan.print(arguments.output)?;
    plan.must_be_possible()?;
    Ok(plan.has_changes())
}

impl Wanted {
    /// Returns the required changes of each object, without applying them.
    pub async fn steps(&self) -> Result<Vec<Step>, Failure> {
        let contents = self.files.read()?;
        let objects = self.objects(&contents.manifests, &contents.unreadable)?;
        let resolver = Resolver::new(&self.servers, &contents.manifests, &self.namespace)?;
        let mut steps = Vec::new();
        let mut failure = None;
        let mut targets: HashMap<(String, String), String> = HashMap::new();
        for object in &objects {
            let step = match object.step(&resolver).await {
                Ok(step) => step,
                Err(error) => {
                    // Report all failures, not only the first.
                    if let Some(message) = &error.message {
                        say(format!("{}: {message}", object.called()));
                    }
                    failure = Some(Failure::silent(error.code));
                    continue;
                }
            };
            let target = (step.shown.server.clone(), step.shown.target.clone());
            if let Some(other) = targets.insert(target, object.called()) {
                let message = format!(
                    "{other} and {} both stand for {} on {}: leave one out",
                    object.called(),
                    step.shown.target,
                    step.shown.server
                );
                return Err(Failure::new(Failure::INVALID, message));
            }
            steps.push(step);
        }
        match failure {
            Some(failure) => Err(failure),
            None => Ok(steps),
        }
    }

    fn objects(
        &self,
        manifests: &[Manifest],
        unreadable: &[Unreadable],
    ) -> Result<Vec<Box<dyn Object>>, Failure> {
        let checker = Checker::new();
        let mut invalid = unreadable.len();
        for found in unreadable {
            say(format!("{}: {}", found.place, found.why));
        }
        let mut objects = Vec::new();
        for manifest in manifests.iter().filter(|manifest| manifest.is_ours()) {
            match checker.check_named(manifest) {
                Ok(mut object) => {
                    object.set_default_namespace(&self.namespace);
                    objects.push(object);
                }
                Err(problems) => {
                    invalid += 1;
                    for problem in problems {
                        let place = manifest.place_of(&problem.path);
                        say(format!(
                            "{place}: {}: {}: {}",
                            manifest.what(),
                            problem.path,
                            problem.message
                        ));
                    }
                }
            }
        }
        if invalid > 0 {
            return Err(Failure::new(
                Failure::INVALID,
                "no server was contacted: correct the manifests",
            ));
        }
        Ok(objects)
    }
}
