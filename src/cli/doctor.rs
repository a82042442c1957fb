//! `lockkeeper doctor`: finds problems between the objects and their servers, each with
//! the next step. See the submodules for the findings and the checks.

mod finding;
mod installation;
mod lock;
mod objects;

use std::time::{Duration, Instant};

use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use lockkeeper_api::{PressureQueue, Semaphore};
use serde::Serialize;

use self::finding::{Finding, Level};
use super::common::{duration, say};
use super::completion;
use super::failure::Failure;
use super::kubernetes::{Cluster, answered};
use super::output::{self, Format};
use super::target::LockLocation;

/// Arguments of `lockkeeper doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    /// Diagnose whether a client can hold this lock from here, instead of objects: its name on
    /// the broker, for example demo.deploy, or sem/NAME. Takes no slot; a free token is taken
    /// and given back
    #[arg(
        long,
        value_name = "LOCK",
        conflicts_with_all = ["all_namespaces", "operator_namespace", "no_servers"],
        add = completion::semaphores(),
    )]
    lock: Option<String>,

    /// Diagnose the objects of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Namespace of the operator [default: search all namespaces]
    #[arg(long, value_name = "NAMESPACE")]
    operator_namespace: Option<String>,

    /// Do not connect to brokers and Redis servers
    #[arg(long)]
    no_servers: bool,

    /// Wait until no problem is found, for example after an installation, for at most this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    place: LockLocation,
}

const EXIT_CODES: &str = "\
Exit codes: 0 no problem found, but there may be remarks; 1 a problem was found; 64 invalid \
usage; 69 the API server can't be reached.";

/// Exit code if a problem was found.
const WRONG: u8 = 1;

/// Pause between two diagnoses.
const BETWEEN: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Shown {
    healthy: bool,
    findings: Vec<Finding>,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    if arguments.lock.is_none() {
        arguments.place.must_be_a_connection("--lock")?;
    }
    let started = Instant::now();
    let limit = arguments.wait.unwrap_or_default();
    loop {
        let found = diagnosed(&arguments).await;
        let is_wrong = |finding: &Finding| finding.level == Level::Wrong;
        let is_healthy = found.as_ref().is_ok_and(|found| !found.iter().any(is_wrong));
        if is_healthy || started.elapsed() + BETWEEN > limit {
            return show(arguments.output, found?);
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

/// Returns the findings about the lock, or about the operator and the objects.
async fn diagnosed(arguments: &Arguments) -> Result<Vec<Finding>, Failure> {
    if let Some(lock) = &arguments.lock {
        return Ok(lock::look(&arguments.place, lock).await);
    }
    let cluster = arguments.place.kubernetes().connect().await?;
    // Without the API server, no check is possible.
    answered(cluster.client.apiserver_version()).await?;
    let mut findings = installation::definitions(&cluster).await;
    let mut namespaces = Vec::new();
    if !findings.iter().any(|finding| finding.level == Level::Wrong) {
        let semaphores = all::<Semaphore>(arguments, &cluster, &mut findings).await?;
        let queues = all::<PressureQueue>(arguments, &cluster, &mut findings).await?;
        let of_objects = semaphores.iter().filter_map(ResourceExt::namespace);
        namespaces.extend(of_objects.chain(queues.iter().filter_map(ResourceExt::namespace)));
        namespaces.sort();
        namespaces.dedup();
        let look = objects::Look::new(&cluster, &arguments.place, !arguments.no_servers)?;
        for semaphore in semaphores {
            findings.extend(look.semaphore(semaphore).await);
        }
        for queue in queues {
            findings.extend(look.queue(queue).await);
        }
    }
    if namespaces.is_empty() {
        namespaces.push(cluster.namespace.clone());
    }
    let of_operator =
        installation::operator(&cluster, arguments.operator_namespace.as_deref(), &namespaces);
    findings.splice(0..0, of_operator.await);
    Ok(findings)
}

fn show(format: Format, findings: Vec<Finding>) -> Result<(), Failure> {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (wrong, remarks) = (count(Level::Wrong), count(Level::Remark));
    let shown = Shown { healthy: wrong == 0, findings };
    match format {
        Format::Table | Format::Wide => {
            // A table would be too wide: messages are sentences.
            let text: String = shown.findings.iter().map(Finding::text).collect();
            output::write(&text)?;
            say(format!("{wrong} wrong, {remarks} remarks"));
        }
        _ => {
            let columns = [("LEVEL", false), ("ABOUT", false), ("MESSAGE", false), ("NEXT", false)];
            let not_ok: Vec<Vec<String>> = shown
                .findings
                .iter()
                .filter(|finding| finding.level != Level::Ok)
                .map(|finding| finding.row().to_vec())
                .collect();
            output::print(format, &shown, &columns, &not_ok, "ABOUT")?;
        }
    }
    if shown.healthy { Ok(()) } else { Err(Failure::silent(WRONG)) }
}

/// Lists the objects of a kind. If the user may not list them, that is a finding.
async fn all<K>(
    arguments: &Arguments,
    cluster: &Cluster,
    findings: &mut Vec<Finding>,
) -> Result<Vec<K>, Failure>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = cluster.api(arguments.all_namespaces);
    match answered(api.list(&ListParams::default())).await {
        Ok(listed) => Ok(listed.items),
        Err(failure) if failure.code == Failure::NOT_PERMITTED => {
            let about = K::plural(&()).into_owned();
            let next = "ask a user with permission to list them, or select a --namespace";
            findings.push(Finding::remark(about, failure.message.unwrap_or_default(), next));
            Ok(Vec::new())
        }
        Err(failure) => Err(failure),
    }
}
