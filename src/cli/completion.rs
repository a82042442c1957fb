//! `lockkeeper completion`: prints a script that completes arguments in a shell. The script asks
//! this program for the candidates, among them the locks and queues of the cluster.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::time::Duration;

use clap::Command;
use clap_complete::env::Shells;
use clap_complete::{ArgValueCompleter, CompleteEnv, CompletionCandidate};
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use lockkeeper_api::{PressureQueue, Semaphore};
use serde::de::DeserializeOwned;

use super::common::single_thread;
use super::failure::Failure;
use super::kubernetes::Kubernetes;
use super::output;
use super::streams;

/// The environment variable by which a script asks for candidates: the name of its shell.
const VARIABLE: &str = "LOCKKEEPER_COMPLETE";

/// Maximum time to read names from the API server. Until then the shell is blocked.
const PATIENCE: Duration = Duration::from_secs(2);

/// Maximum number of candidates of a kind.
const MOST: u32 = 500;

/// Arguments of `lockkeeper completion`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let shell = arguments.shell.to_string();
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&shell) else {
        return Err(Failure::new(Failure::USAGE, format!("no completion for {shell}")));
    };
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "lockkeeper", "lockkeeper", "lockkeeper", &mut script)
        .map_err(|error| streams::unwritable(&error, ""))?;
    output::write(&script)
}

/// Prints candidates if a script asks for them. Otherwise returns `None`.
pub(super) fn answer(command: fn() -> Command) -> Option<Result<(), Failure>> {
    let asked = CompleteEnv::with_factory(command).var(VARIABLE).bin("lockkeeper");
    match asked.try_complete(std::env::args_os(), None) {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        // For example an unknown shell.
        Err(error) => Some(Err(Failure::new(Failure::USAGE, format!("{VARIABLE}: {error}")))),
    }
}

/// Completes the name of a Semaphore.
pub(super) fn semaphores() -> ArgValueCompleter {
    ArgValueCompleter::new(|start: &OsStr| objects::<Semaphore>("sem", start))
}

/// Completes the name of a `PressureQueue`.
pub(super) fn queues() -> ArgValueCompleter {
    ArgValueCompleter::new(|start: &OsStr| objects::<PressureQueue>("pq", start))
}

/// Completes the name of an object of either kind.
pub(super) fn all_objects() -> ArgValueCompleter {
    ArgValueCompleter::new(|start: &OsStr| {
        let mut all = objects::<Semaphore>("sem", start);
        all.extend(objects::<PressureQueue>("pq", start));
        all
    })
}

/// Returns the objects of a kind whose name starts in this way. None if the API server can't be
/// asked: a completion has no place for an error.
fn objects<K>(kind: &str, start: &OsStr) -> Vec<CompletionCandidate>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let Some(start) = start.to_str() else { return Vec::new() };
    let names = names::<K>(&location(std::env::args_os())).unwrap_or_default().into_iter();
    let names = names.map(|name| format!("{kind}/{name}"));
    names.filter(|name| name.starts_with(start)).map(CompletionCandidate::new).collect()
}

fn names<K>(location: &Kubernetes) -> Option<Vec<String>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let runtime = single_thread().ok()?;
    let read = async {
        let api: Api<K> = location.connect().await.ok()?.api(false);
        let objects = api.list_metadata(&ListParams::default().limit(MOST)).await.ok()?;
        Some(objects.items.iter().map(ResourceExt::name_any).collect())
    };
    let names = runtime.block_on(async { tokio::time::timeout(PATIENCE, read).await.ok()? });
    // Otherwise the shutdown would wait for a name server that does not answer.
    runtime.shutdown_background();
    names
}

/// Returns the Kubernetes options of the words that are completed, which follow a first `--`.
/// Those after a second one are another program's.
fn location(words: impl Iterator<Item = OsString>) -> Kubernetes {
    let words = words.skip_while(|word| word != "--").skip(1).take_while(|word| word != "--");
    let mut words = words.filter_map(|word| word.into_string().ok());
    let mut found = Kubernetes::default();
    while let Some(word) = words.next() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        found.set(&option, || value.or_else(|| words.next()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_among_the_completed_words_say_where_to_look() {
        let line = "lockkeeper -- lockkeeper exec -n demo --context=prod sem/ -- kubectl -n other";
        let found = location(line.split(' ').map(OsString::from));
        let given: Vec<_> = found.arguments().collect();
        let expected = [("--namespace", "demo"), ("--context", "prod")];
        assert_eq!(given, expected.map(|(option, value)| (option, value.to_owned())));
        // An option whose value is still to be typed.
        let found =
            location("lockkeeper -- lockkeeper exec --namespace".split(' ').map(OsString::from));
        assert_eq!(found.arguments().count(), 0);
    }
}
