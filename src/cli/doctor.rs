//! `lockkeeper doctor`: what is wrong between the objects and their servers, each
//! with what to do next. Here is what a finding is and how all are shown; one
//! subject is one file.

mod installation;
mod objects;

use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;

use super::kubernetes::{Cluster, Kubernetes, failed};
use super::output::{self, Format};
use super::{Failure, say};
use crate::api::{PressureQueue, Semaphore};

/// Arguments of `lockkeeper doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    /// The objects of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Where the operator runs [default: wherever it is found]
    #[arg(long, value_name = "NAMESPACE")]
    operator_namespace: Option<String>,

    /// Don't connect to brokers and Redis servers
    #[arg(long)]
    no_servers: bool,

    /// The form of the answer
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    kubernetes: Kubernetes,
}

const EXIT_CODES: &str = "\
Exit codes: 0 nothing is wrong, though there may be remarks; 1 something is wrong; 64 wrong usage; \
69 Kubernetes can't be asked.";

/// Something is wrong.
const WRONG: u8 = 1;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// It was looked at, and is as it should be.
    Ok,
    /// It may be as it should, or passes by itself.
    Remark,
    /// Somebody must do something.
    Wrong,
}

/// What was found out about one thing.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    level: Level,
    /// What it is about: `operator`, `crd/NAME`, `NAMESPACE/sem/NAME`.
    about: String,
    message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

impl Finding {
    fn ok(about: impl Into<String>, message: impl Into<String>) -> Self {
        Self { level: Level::Ok, about: about.into(), message: message.into(), next: None }
    }

    fn remark(
        about: impl Into<String>,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        let next = Some(next.into());
        Self { level: Level::Remark, about: about.into(), message: message.into(), next }
    }

    fn wrong(
        about: impl Into<String>,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { level: Level::Wrong, ..Self::remark(about, message, next) }
    }

    /// Its lines.
    fn text(&self) -> String {
        let [level, about, message, next] = self.row();
        let next = self.next.as_ref().map(|_| format!("        -> {next}\n"));
        format!("{level:7} {about}: {message}\n{}", next.unwrap_or_default())
    }

    fn row(&self) -> [String; 4] {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Remark => "remark",
            Level::Wrong => "WRONG",
        };
        let next = output::or_dash(self.next.as_ref());
        [level.to_owned(), self.about.clone(), self.message.clone(), next]
    }
}

#[derive(Serialize)]
struct Shown {
    healthy: bool,
    findings: Vec<Finding>,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let cluster = arguments.kubernetes.connect().await?;
    // Without it nothing can be found out.
    cluster.client.apiserver_version().await.map_err(|error| failed(&error))?;
    let mut findings = installation::definitions(&cluster).await;
    let mut namespaces = Vec::new();
    if !findings.iter().any(|finding| finding.level == Level::Wrong) {
        let semaphores = all::<Semaphore>(&arguments, &cluster).await?;
        let queues = all::<PressureQueue>(&arguments, &cluster).await?;
        let of_objects = semaphores.iter().filter_map(ResourceExt::namespace);
        namespaces.extend(of_objects.chain(queues.iter().filter_map(ResourceExt::namespace)));
        namespaces.sort();
        namespaces.dedup();
        let look = objects::Look::new(&cluster, &arguments);
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
    show(arguments.output, findings)
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

async fn all<K>(arguments: &Arguments, cluster: &Cluster) -> Result<Vec<K>, Failure>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = cluster.api(arguments.all_namespaces);
    let listed = api.list(&ListParams::default()).await.map_err(|error| failed(&error))?;
    Ok(listed.items)
}
