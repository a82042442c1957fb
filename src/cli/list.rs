//! `lockkeeper list`: lists the objects of both kinds with their status.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use lockkeeper_api::conditions::{READY, find};
use lockkeeper_api::pressure_queue::RoleStatus;
use lockkeeper_api::{PressureQueue, Semaphore, validate};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::common::say;
use super::failure::Failure;
use super::kubernetes::{Cluster, Kubernetes, answered, failed};
use super::output::{self, Column, Format, or_dash};
use crate::operator::api_error::explain;

/// Arguments of `lockkeeper list`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// List the objects of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Only objects that match this label selector, for example team=media
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    selector: Option<String>,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,

    /// Watch for changes after listing, and print a line for each
    #[arg(long, short)]
    watch: bool,

    #[command(flatten)]
    kubernetes: Kubernetes,
}

/// An object in the output.
struct Shown {
    columns: &'static [Column],
    row: Vec<String>,
    data: Value,
}

/// A kind that can be listed.
trait Listed:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + DeserializeOwned
    + Serialize
    + Send
    + 'static
{
    const SHORT: &'static str;
    /// Columns of the table, after NAMESPACE and NAME.
    const COLUMNS: &'static [Column];

    fn cells(&self) -> Vec<String>;

    fn shown(mut self) -> Shown {
        self.managed_fields_mut().clear();
        let name = format!("{}/{}", Self::SHORT, self.name_any());
        let start = vec![self.namespace().unwrap_or_default(), name];
        let data = serde_json::to_value(&self).unwrap_or_default();
        Shown { columns: Self::COLUMNS, row: [start, self.cells()].concat(), data }
    }
}

impl Listed for Semaphore {
    const SHORT: &'static str = "sem";
    const COLUMNS: &'static [Column] = &[
        ("SLOTS", false),
        ("HELD", false),
        ("FREE", false),
        ("DRAINING", false),
        ("WAITING", false),
        ("READY", false),
        ("AGE", false),
        ("HOLDERS", false),
        ("SUSPENDED", true),
        ("LOCK", true),
        ("BACKEND", true),
        ("STATUS", true),
    ];

    fn cells(&self) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let (ready, message) = ready(&status.conditions);
        vec![
            or_dash(status.slots),
            or_dash(status.held),
            or_dash(status.free),
            or_dash(status.draining),
            or_dash(status.waiting),
            ready,
            age(self),
            or_dash(status.holders_summary.filter(|holders| !holders.is_empty())),
            yes(self.spec.suspend),
            validate::lock_name(self),
            or_dash(status.backend),
            message,
        ]
    }
}

impl Listed for PressureQueue {
    const SHORT: &'static str = "pq";
    const COLUMNS: &'static [Column] = &[
        ("LENGTH", false),
        ("BOUND", false),
        ("CLOSED", false),
        ("READY", false),
        ("AGE", false),
        ("PRODUCER", false),
        ("CONSUMER", false),
        ("SUSPENDED", true),
        ("QUEUE", true),
        ("BACKEND", true),
        ("STATUS", true),
    ];

    fn cells(&self) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let (ready, message) = ready(&status.conditions);
        let role = |role: Option<RoleStatus>| or_dash(role.and_then(|role| role.summary));
        vec![
            or_dash(status.length),
            or_dash(status.bound),
            or_dash(status.closed),
            ready,
            age(self),
            role(status.producer),
            role(status.consumer),
            yes(self.spec.suspend),
            validate::queue_name(self),
            or_dash(status.backend),
            message,
        ]
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let cluster = arguments.kubernetes.connect().await?;
    if arguments.watch {
        return watch(&arguments, &cluster).await;
    }
    let mut shown = Vec::new();
    shown.extend(all::<Semaphore>(&arguments, &cluster).await?);
    shown.extend(all::<PressureQueue>(&arguments, &cluster).await?);
    match arguments.output {
        Format::Json | Format::Yaml => {
            let items: Vec<Value> = shown.into_iter().map(|object| object.data).collect();
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
            output::print_data(arguments.output, &list)
        }
        Format::Name => output::write(
            &shown.iter().map(|object| object.row[1].clone() + "\n").collect::<String>(),
        ),
        Format::Table | Format::Wide => {
            if shown.is_empty() {
                say(if arguments.all_namespaces {
                    "there are no objects".to_owned()
                } else {
                    format!("there are no objects in the namespace {}", cluster.namespace)
                });
            }
            let mut by_kind: Vec<(&[Column], Vec<Vec<String>>)> = Vec::new();
            for object in shown {
                match by_kind.last_mut() {
                    Some((columns, rows)) if *columns == object.columns => rows.push(object.row),
                    _ => by_kind.push((object.columns, vec![object.row])),
                }
            }
            let tables: Vec<String> =
                by_kind.iter().map(|(columns, rows)| table(&arguments, columns, rows)).collect();
            output::write(&tables.join("\n"))
        }
    }
}

fn api<K: Listed>(arguments: &Arguments, cluster: &Cluster) -> Api<K> {
    cluster.api(arguments.all_namespaces)
}

async fn all<K: Listed>(arguments: &Arguments, cluster: &Cluster) -> Result<Vec<Shown>, Failure> {
    let params = ListParams { label_selector: arguments.selector.clone(), ..ListParams::default() };
    let listed = answered(api::<K>(arguments, cluster).list(&params)).await?;
    Ok(listed.items.into_iter().map(K::shown).collect())
}

/// Formats a table with the columns and widths that the arguments select.
fn table(arguments: &Arguments, columns: &[Column], rows: &[Vec<String>]) -> String {
    // The namespace is only shown if there are several.
    let from = usize::from(!arguments.all_namespaces);
    let columns = [&[("NAMESPACE", false), ("NAME", false)], columns].concat();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row[from..].to_vec()).collect();
    output::table(&columns[from..], &rows, arguments.output == Format::Wide)
}

/// Prints a line for each object, and for each of its changes.
async fn watch(arguments: &Arguments, cluster: &Cluster) -> Result<(), Failure> {
    let changes = stream::select(
        changes::<Semaphore>(arguments, cluster).boxed(),
        changes::<PressureQueue>(arguments, cluster).boxed(),
    );
    tokio::pin!(changes);
    // The last printed row of each object, to avoid repetitions, and the current heading.
    let mut told: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    let mut heading: Option<&[Column]> = None;
    while let Some(change) = changes.next().await {
        let object = change?;
        match arguments.output {
            Format::Json | Format::Yaml => {
                if arguments.output == Format::Yaml {
                    output::write("---\n")?;
                }
                output::print_data(arguments.output, &object.data)?;
            }
            Format::Name => output::write(&(object.row[1].clone() + "\n"))?,
            Format::Table | Format::Wide => {
                let key = object.row[..2].to_vec();
                if told.get(&key) == Some(&object.row) {
                    continue;
                }
                told.insert(key, object.row.clone());
                // Columns are as wide as the widest printed row, so that rows stay
                // aligned.
                let of_kind = told.values().filter(|row| row.len() == object.row.len());
                let others: Vec<Vec<String>> = of_kind.cloned().collect();
                let rows = [vec![object.row], others].concat();
                let text = table(arguments, object.columns, &rows);
                let is_new = heading != Some(object.columns);
                heading = Some(object.columns);
                let lines: Vec<&str> = text.lines().take(2).skip(usize::from(!is_new)).collect();
                output::write(&(lines.join("\n") + "\n"))?;
            }
        }
    }
    Ok(())
}

fn changes<K: Listed>(
    arguments: &Arguments,
    cluster: &Cluster,
) -> impl stream::Stream<Item = Result<Shown, Failure>> + use<K> {
    let mut config = watcher::Config::default();
    config.label_selector.clone_from(&arguments.selector);
    let objects = watcher(api::<K>(arguments, cluster), config).default_backoff().touched_objects();
    objects.filter_map(async |change| match change {
        Ok(object) => Some(Ok(object.shown())),
        // A failed initial list is final; a broken watch is restarted.
        Err(error @ watcher::Error::InitialListFailed(_)) => Some(Err(failed(&error))),
        Err(error) => {
            say(format!("watching again: {}", explain(&error)));
            None
        }
    })
}

fn ready(conditions: &[Condition]) -> (String, String) {
    let ready = find(conditions, READY);
    (or_dash(ready.map(|ready| &ready.status)), or_dash(ready.map(|ready| &ready.message)))
}

fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "-" }.to_owned()
}

fn age(object: &impl ResourceExt) -> String {
    let Some(created) = object.creation_timestamp() else { return or_dash(None::<String>) };
    let seconds = Timestamp::now().as_second() - created.0.as_second();
    in_short(seconds.max(0))
}

/// Formats an age as kubectl does.
fn in_short(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    match seconds {
        ..120 => format!("{seconds}s"),
        120..10_800 => format!("{}m", seconds / MINUTE),
        10_800..172_800 => format!("{}h", seconds / HOUR),
        _ => format!("{}d", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_one_unit() {
        let ages = [0, 119, 120, 10_799, 10_800, 172_799, 172_800, 86_400 * 400].map(in_short);
        assert_eq!(ages, ["0s", "119s", "2m", "179m", "3h", "47h", "2d", "400d"]);
    }
}
