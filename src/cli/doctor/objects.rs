//! Checks each object's status and connection: conditions that require action, the
//! connection Secret, and whether the server is reachable from here.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use lockkeeper_api::conditions::{BACKEND_REACHABLE, DAMAGED, READY, STALLED, find};
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_plan::connection::{RabbitmqSettings, RedisSettings};
use lockkeeper_plan::pressure_queue::eviction;
use lockkeeper_pressure::{Store, StoreIdentity, StoreOptions};
use lockkeeper_semaphore::{Broker, BrokerOptions, ManagementError};

use super::finding::{Finding, Level};
use crate::cli::failure::Failure;
use crate::cli::kubernetes::{Cluster, FoundObject};
use crate::cli::target::{LockLocation, QueueLocation, variable};

/// Time limit for a server's response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Shared state of the checks of all objects.
pub(super) struct Look<'a> {
    cluster: &'a Cluster,
    ask_servers: bool,
    place: LockLocation,
    has_broker: bool,
    queue_place: QueueLocation,
    has_store: bool,
}

/// The status of an object, as reported by the operator.
struct Report<'a> {
    about: String,
    conditions: &'a [Condition],
    is_observed: bool,
}

impl Report<'_> {
    fn condition(&self, type_: &str, status: &str) -> Option<&Condition> {
        find(self.conditions, type_).filter(|condition| condition.status == status)
    }

    /// Returns the most severe finding of the status, or `None` if there is no problem.
    fn finding(&self) -> Option<Finding> {
        let said = |condition: &Condition| format!("{}: {}", condition.reason, condition.message);
        if !self.is_observed {
            let message = "the operator has not seen its newest spec";
            let next = "wait some seconds; if it stays so, the operator does not run, or does not watch this namespace";
            return Some(Finding::remark(&self.about, message, next));
        }
        if let Some(stalled) = self.condition(STALLED, "True") {
            let next =
                "the message says what to change; nothing happens until then (docs/conditions.md)";
            return Some(Finding::wrong(&self.about, said(stalled), next));
        }
        if let Some(unreachable) = self.condition(BACKEND_REACHABLE, "False") {
            let next = "check the server, and the address in the connection Secret";
            return Some(Finding::wrong(&self.about, said(unreachable), next));
        }
        if let Some(damaged) = self.condition(DAMAGED, "True") {
            let next = "`lockkeeper queue doctor pq/NAME --repair`, or spec.repairPolicy: Repair";
            return Some(Finding::wrong(&self.about, said(damaged), next));
        }
        let ready = find(self.conditions, READY)?;
        match ready.status.as_str() {
            "True" => None,
            _ => Some(Finding::remark(
                &self.about,
                said(ready),
                "it is tried again by itself; look again in a minute",
            )),
        }
    }
}

impl<'a> Look<'a> {
    pub fn new(
        cluster: &'a Cluster,
        place: &LockLocation,
        ask_servers: bool,
    ) -> Result<Self, Failure> {
        Ok(Self {
            cluster,
            ask_servers,
            has_broker: place.names_a_broker(),
            has_store: variable("REDIS_URL")?.is_some(),
            place: place.clone(),
            queue_place: QueueLocation::of_url(None, "REDIS_URL", place.kubernetes().clone()),
        })
    }

    pub async fn semaphore(&self, object: Semaphore) -> Vec<Finding> {
        let status = object.status.clone().unwrap_or_default();
        let mut findings = told(&object, "sem", status.observed_generation, &status.conditions);
        let has_own = object.spec.rabbitmq_cluster_reference.is_some();
        let operators = find(&status.conditions, BACKEND_REACHABLE).cloned();
        let about = about(&object, "sem");
        if has_own || self.has_broker {
            match self.place.of_resource(&self.found(object)).await {
                Ok(found) if self.ask_servers => {
                    let (answer, management) = ask_broker(found.settings).await;
                    findings.extend(reachable(&about, answer, operators.as_ref()));
                    findings.extend(management.map(|error| {
                        let next = "correct managementUri in the connection Secret; until then, holders have no names";
                        Finding::remark(&about, error.to_string(), next)
                    }));
                }
                Ok(_) => {}
                Err(failure) => findings.push(connection(&about, failure)),
            }
        }
        settled(findings, &about)
    }

    pub async fn queue(&self, object: PressureQueue) -> Vec<Finding> {
        let status = object.status.clone().unwrap_or_default();
        let mut findings = told(&object, "pq", status.observed_generation, &status.conditions);
        let reference = object.spec.redis_reference.as_ref();
        let has_own = reference.is_some_and(|reference| reference.connection_secret.is_some());
        let operators = find(&status.conditions, BACKEND_REACHABLE).cloned();
        let about = about(&object, "pq");
        if has_own || self.has_store {
            match self.queue_place.of_resource(&self.found(object)).await {
                Ok((settings, _)) if self.ask_servers => {
                    let answer = ask_store(settings).await;
                    if let Some(policy) = answer.as_ref().ok().and_then(StoreIdentity::eviction) {
                        let next =
                            "CONFIG SET maxmemory-policy noeviction, and in its configuration file";
                        findings.push(Finding::remark(&about, eviction(policy), next));
                    }
                    findings.extend(reachable(&about, answer.map(drop), operators.as_ref()));
                }
                Ok(_) => {}
                Err(failure) => findings.push(connection(&about, failure)),
            }
        }
        settled(findings, &about)
    }

    fn found<K: ResourceExt>(&self, object: K) -> FoundObject<K> {
        let namespace = object.namespace().unwrap_or_default();
        FoundObject::of(object, self.cluster.client.clone(), namespace)
    }
}

fn about<K: ResourceExt>(object: &K, kind: &str) -> String {
    format!("{}/{kind}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

fn told<K: ResourceExt + Resource>(
    object: &K,
    kind: &str,
    observed: Option<i64>,
    conditions: &[Condition],
) -> Vec<Finding> {
    let is_observed = observed.is_some() && observed == object.meta().generation;
    let report = Report { about: about(object, kind), conditions, is_observed };
    let mut findings: Vec<Finding> = report.finding().into_iter().collect();
    if object.meta().deletion_timestamp.is_some() {
        let message = "is being deleted, and its cleanup on the server is not finished";
        let next = "its condition Ready says why; docs/deletion.md says how to let it go";
        findings.push(Finding::remark(report.about, message, next));
    }
    findings
}

/// Returns the finding for a connection that cannot even be attempted.
fn connection(about: &str, failure: Failure) -> Finding {
    let message = failure.message.unwrap_or_default();
    if failure.code == Failure::NOT_PERMITTED {
        let next = "ask a user with permission to read that Secret; the operator has this permission in any case";
        return Finding::remark(about, message, next);
    }
    let next = "examples/secret shows the keys; a corrected Secret is used within 30 s";
    Finding::wrong(about, message, next)
}

/// Asks a broker for its identity, and its management API for a list. Returns the answer of the
/// first, and why the second is useless.
async fn ask_broker(settings: RabbitmqSettings) -> (Result<(), String>, Option<ManagementError>) {
    let broker = Broker::new(settings, BrokerOptions::default());
    let (asked, management) =
        tokio::join!(tokio::time::timeout(PATIENCE, broker.identity()), broker.check_management());
    let answer = match asked {
        Ok(answer) => answer.map(drop).map_err(|error| error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    };
    // If the broker does not answer either, one finding is enough.
    let management = if answer.is_ok() { management.err() } else { None };
    (answer, management)
}

async fn ask_store(settings: RedisSettings) -> Result<StoreIdentity, String> {
    let store = Store::new(settings, StoreOptions::new("lockkeeper-doctor"));
    let asked = tokio::time::timeout(PATIENCE, store.identity()).await;
    asked.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())
}

/// Interprets whether the server answers from here. The operator may see a different
/// result, and the operator's counts.
fn reachable(
    about: &str,
    answer: Result<(), String>,
    operators: Option<&Condition>,
) -> Option<Finding> {
    let operator_reaches = operators.is_some_and(|condition| condition.status == "True");
    match answer {
        Ok(()) => None,
        Err(error) if operator_reaches => Some(Finding::remark(
            about,
            format!("its server answers the operator, but not from here: {error}"),
            "nothing, unless clients run where this program does",
        )),
        Err(error) => Some(Finding::wrong(
            about,
            format!("its server does not answer from here: {error}"),
            "check the server, and the address and user in the connection Secret",
        )),
    }
}

/// Joins the findings of the status and of this program about the same fault, and adds the
/// finding that all is well if there is no other.
fn settled(mut findings: Vec<Finding>, about: &str) -> Vec<Finding> {
    if let [reported, .., own] = findings.as_slice() {
        let (_, fault) = reported.message.split_once(": ").unwrap_or_default();
        if own.message == fault {
            // What only this program knows is whether it is temporary.
            let own = findings.pop();
            if let Some(reported) = findings.first_mut().filter(|found| found.level != Level::Wrong)
                && let Some(own) = own
            {
                (reported.level, reported.next) = (own.level, own.next);
            }
        }
    }
    if !findings.iter().any(|finding| finding.level != Level::Ok) {
        findings.push(Finding::ok(about, "is as it should be"));
    }
    findings
}
