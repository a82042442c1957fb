//! `lockkeeper queue doctor`: diagnoses and repairs a queue. See
//! [`plan`](lockkeeper_plan::pressure_queue::doctor) for which damage is repaired, and when.

use std::time::{Duration, Instant};

use lockkeeper_plan::pressure_queue::Remark;
use lockkeeper_plan::pressure_queue::doctor::{
    Against, Connection, Diagnosis, Effort, Finding, Remedy,
};
use lockkeeper_pressure::{Queue, QueueError, Repaired};
use serde::Serialize;

use super::common::{failed, warn_of_eviction};
use crate::cli::common::{duration, say};
use crate::cli::failure::Failure;
use crate::cli::output::{self, Format};
use crate::cli::target::QueueTarget;

/// Interval between two examinations.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of examinations. While clients work, findings may need another
/// observation each time.
const LOOKS: u32 = 5;

/// Arguments of `lockkeeper queue doctor`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: QueueTarget,

    /// Repair what can be repaired. No element is removed, except from a queue whose deletion has
    /// already started
    #[arg(long, help_heading = None)]
    repair: bool,

    /// Time without activity before damage left by a dead client is repaired
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", help_heading = None)]
    idle: Duration,

    /// With --repair, stop waiting for damage that cannot be repaired yet after this time
    /// [default: twice --idle]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "repair", help_heading = None)]
    timeout: Option<Duration>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t, help_heading = None)]
    output: Format,
}

/// The output.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    prefix: &'a str,
    healthy: bool,
    findings: Vec<ShownFinding>,
}

#[derive(Serialize)]
struct ShownFinding {
    reason: &'static str,
    state: State,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    connections: Vec<ShownConnection>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    did: Vec<String>,
}

#[derive(Serialize)]
struct ShownConnection {
    address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    age: String,
}

/// State of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum State {
    /// The damage was repaired.
    Mended,
    /// The queue is damaged.
    Damaged,
    /// A client may be at work. There is no evidence against it.
    AtWork,
    /// The client waits for capacity or for elements.
    Waiting,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Mended => "mended",
            Self::Damaged => "damaged",
            Self::AtWork => "at work",
            Self::Waiting => "waiting",
        }
    }
}

impl From<&Connection> for ShownConnection {
    fn from(connection: &Connection) -> Self {
        Self {
            address: connection.address.clone(),
            name: connection.name.clone(),
            age: format!("{}s", connection.age.as_secs()),
        }
    }
}

impl ShownFinding {
    fn new(state: State, finding: &Finding) -> Self {
        let remedy = match &finding.remedy {
            Remedy::Mend(_) => "--repair fixes it".to_owned(),
            Remedy::Wait(against @ Against::NotTold) => format!("repaired {against}"),
            Remedy::Wait(against) => format!("--repair fixes it, but {against}"),
            Remedy::Leave(text) => (*text).to_owned(),
        };
        let connections = match &finding.remedy {
            Remedy::Wait(Against::Connected(all)) => all.iter().map(Into::into).collect(),
            _ => Vec::new(),
        };
        let (reason, message) = (finding.remark.reason(), finding.remark.to_string());
        // A role that is in use needs no repair.
        let has_remedy = matches!(finding.remark, Remark::LeasesEnded { .. });
        let remedy = (state == State::Damaged || has_remedy).then_some(remedy);
        Self { reason, state, message, remedy, connections, did: Vec::new() }
    }

    fn row(&self) -> Vec<String> {
        let done = (!self.did.is_empty()).then(|| self.did.join(", "));
        let connection = |c: &ShownConnection| match c.name.as_str() {
            "" => format!("{} since {}", c.address, c.age),
            name => format!("{} ({name}) since {}", c.address, c.age),
        };
        let connections: Vec<String> = self.connections.iter().map(connection).collect();
        vec![
            self.reason.to_owned(),
            self.state.word().to_owned(),
            self.message.clone(),
            output::or_dash(done.as_ref().or(self.remedy.as_ref())),
            output::or_dash((!connections.is_empty()).then(|| connections.join(", "))),
        ]
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let queue = arguments.which.find().await?;
    warn_of_eviction(&queue).await;
    let mut mended = Vec::new();
    let diagnosis = examine(&queue, &arguments, &mut mended).await?;
    let of = |state, findings: &[Finding]| -> Vec<ShownFinding> {
        findings.iter().map(|finding| ShownFinding::new(state, finding)).collect()
    };
    let healthy = diagnosis.damage.is_empty();
    mended.extend(of(State::Damaged, &diagnosis.damage));
    mended.extend(of(State::AtWork, &diagnosis.at_work));
    mended.extend(of(State::Waiting, &diagnosis.waiting));
    let name = queue.name();
    let shown = Shown { name: name.as_str(), prefix: name.prefix(), healthy, findings: mended };
    let columns = [
        ("FINDING", false),
        ("STATE", false),
        ("WHAT", false),
        ("REMEDY", false),
        ("CONNECTIONS", true),
    ];
    let rows: Vec<Vec<String>> = shown.findings.iter().map(ShownFinding::row).collect();
    if rows.is_empty() && matches!(arguments.output, Format::Table | Format::Wide) {
        say(format!("nothing is wrong with {name}"));
    } else {
        output::print(arguments.output, &shown, &columns, &rows, "FINDING")?;
    }
    if healthy { Ok(()) } else { Err(Failure::silent(Failure::DAMAGED)) }
}

/// Examines the queue twice, or with --repair until no repairable damage is left or the
/// time is over. Adds repaired damage to `mended`.
async fn examine(
    queue: &Queue,
    arguments: &Arguments,
    mended: &mut Vec<ShownFinding>,
) -> Result<Diagnosis, Failure> {
    let (store, name) = (queue.store(), queue.name());
    let failed = |error| failed(queue, &QueueError::from(error));
    let mut doctor = store.doctor(name.clone(), arguments.idle, Duration::ZERO);
    let started = Instant::now();
    let timeout = arguments.timeout.unwrap_or(arguments.idle * 2);
    let mut looks = 0;
    loop {
        let at = started.elapsed();
        let seen = store.observe(name).await.map_err(failed)?;
        let is_gone = seen.bound.is_none() && seen.leftovers.is_empty();
        if is_gone && seen.wrong_types.is_empty() && mended.is_empty() {
            return Err(super::common::failed(queue, &QueueError::DoesNotExist));
        }
        let diagnosis = doctor.look(store, seen, at, Effort::Full).await.map_err(failed)?;
        let mut has_mended = false;
        for finding in diagnosis.damage.iter().filter(|_| arguments.repair) {
            let Remedy::Mend(repair) = &finding.remedy else { continue };
            // Stale: the queue was active since; the next examination shows the result.
            if let Repaired::Done(actions) = doctor.repair(store, repair).await.map_err(failed)? {
                let did = actions.iter().map(ToString::to_string).collect();
                mended.push(ShownFinding { did, ..ShownFinding::new(State::Mended, finding) });
                has_mended = true;
            }
        }
        let may_come = |finding: &Finding| match &finding.remedy {
            Remedy::Mend(_) => true,
            Remedy::Wait(against) => *against != Against::NotTold,
            Remedy::Leave(_) => false,
        };
        let is_awaited = arguments.repair
            && (has_mended || diagnosis.damage.iter().chain(&diagnosis.at_work).any(may_come));
        let is_over = started.elapsed() >= timeout && !has_mended;
        looks += 1;
        let is_sure = looks >= LOOKS || looks > 1 && !diagnosis.unsure;
        if is_sure && (!is_awaited || is_over) {
            return Ok(diagnosis);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
