//! `lockkeeper revoke`: requests that the operator revoke a holder's slot, and reports
//! the outcome. The API server checks the permission.

use std::fmt::Display;
use std::time::{Duration, Instant};

use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use lockkeeper_api::revoke::RevokeRequest;
use lockkeeper_api::{REVOKE, Semaphore};
use lockkeeper_plan::clean_text;
use serde_json::json;

use super::common::{duration, say, shown_text};
use super::completion;
use super::confirm::confirmed;
use super::failure::Failure;
use super::kubernetes::{self, FoundObject, Kubernetes};
use super::target;
use super::within::within;
use crate::operator::api_error::explain;

/// Arguments of `lockkeeper revoke`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Semaphore, as sem/NAME
    #[arg(value_name = "SEMAPHORE", add = completion::semaphores())]
    name: String,

    /// Number of the slot; omit with protocol Token
    #[arg(long, value_name = "NUMBER")]
    slot: Option<u32>,

    /// Id of the holder, as in the status; no other holder of the slot is revoked
    #[arg(long, value_name = "ID")]
    holder: String,

    /// Reason, passed to the holder and recorded in the Event
    #[arg(long, value_name = "TEXT", value_parser = shown_text())]
    reason: String,

    /// Revoke the slot even if the holder's connection has other resources, which are
    /// then lost too
    #[arg(long)]
    force: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Time to wait for the operator to handle the request
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    kubernetes: Kubernetes,
}

/// Polling interval for the outcome.
const LOOK: Duration = Duration::from_millis(500);

/// Field manager of this command.
const MANAGER: &str = "kubectl-lockkeeper";

/// Reasons of Events.
const REVOKED: &str = "HolderRevoked";
const REFUSED: &str = "RevokeRefused";

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(Failure::USAGE, message);
    let Some(name) = target::resource::<Semaphore>(&arguments.name) else {
        return Err(usage(format!("{:?} names no Semaphore: give sem/NAME", arguments.name)));
    };
    let finding = arguments.kubernetes.find(name);
    let found: FoundObject<Semaphore> =
        within(Some(arguments.timeout), "Kubernetes", finding).await?;
    if found.object.metadata.deletion_timestamp.is_some() {
        return Err(usage(format!(
            "sem/{name} is being deleted, so its holders can't be revoked any more. Set deletionGuard to None to complete the deletion"
        )));
    }
    let identity = check(&found.object, &arguments)?;
    let what = arguments.slot.map_or_else(|| "a token".to_owned(), |slot| format!("slot {slot}"));
    let holder = clean_text(&arguments.holder, 200);
    let who = identity.map(|who| format!(" ({who})")).unwrap_or_default();
    let question = format!("Take {what} of sem/{name} from {holder}{who}?");
    if !arguments.yes && !confirmed(&question).await? {
        return Err(Failure::new(Failure::USAGE, "nothing was done"));
    }
    let request = RevokeRequest {
        slot: arguments.slot,
        holder: arguments.holder.clone(),
        reason: arguments.reason.clone(),
        force: arguments.force,
        at: jiff::Timestamp::now().to_string(),
    };
    ask(&found, &request).await?;
    let told = outcome(&found, &request, arguments.timeout).await?;
    if told.reason.as_deref() == Some(REVOKED) {
        say(clean_text(&told.note.unwrap_or_default(), 1024));
        return Ok(());
    }
    Err(Failure::new(Failure::UNAVAILABLE, clean_text(&told.note.unwrap_or_default(), 1024)))
}

/// Rejects a request that cannot succeed. Returns the identity of the holder, if known.
fn check(object: &Semaphore, arguments: &Arguments) -> Result<Option<String>, Failure> {
    must_name_slot(object.spec.naming().has_slots(), arguments.slot)?;
    let Some(status) = &object.status else { return Ok(None) };
    let slot = arguments.slot.and_then(|slot| i32::try_from(slot).ok());
    let mut holders = status.holders.iter();
    match holders.find(|holder| holder.id == arguments.holder && holder.slot == slot) {
        Some(holder) => Ok(holder.identity.clone()),
        // The list may be truncated, and a status may be some seconds old.
        None if status.holders_truncated || status.holders.is_empty() => Ok(None),
        None => {
            let held = status.holders.iter();
            let listed = listed(held.map(|holder| (holder.slot, holder.id.as_str())));
            let message = format!("it is not held by that holder; held are: {listed}");
            Err(Failure::new(Failure::USAGE, message))
        }
    }
}

/// Rejects a missing slot number, and one of a token.
pub(super) fn must_name_slot(has_slots: bool, slot: Option<u32>) -> Result<(), Failure> {
    if has_slots == slot.is_some() {
        return Ok(());
    }
    let message = "give --slot, except with protocol Token, whose tokens are not numbered";
    Err(Failure::new(Failure::USAGE, message))
}

/// Lists holders by slot and id, for messages.
pub(super) fn listed<'a, N: Display>(
    holders: impl Iterator<Item = (Option<N>, &'a str)>,
) -> String {
    let one = |(slot, id): (Option<N>, &str)| match slot {
        Some(slot) => format!("slot {slot} by {}", clean_text(id, 200)),
        None => clean_text(id, 200),
    };
    holders.map(one).collect::<Vec<_>>().join(", ")
}

/// Sets the annotation, on the object with this uid only.
async fn ask(found: &FoundObject<Semaphore>, request: &RevokeRequest) -> Result<(), Failure> {
    let failed = |why: String| Failure::new(Failure::UNAVAILABLE, why);
    let text = serde_json::to_string(request).map_err(|error| failed(error.to_string()))?;
    let patch = json!({
        "metadata": {"uid": found.object.uid(), "annotations": {REVOKE: text}},
    });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let name = found.object.name_any();
    match found.api().patch(&name, &params, &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(kubernetes::failed(&error)),
    }
}

/// Waits for the Event with the outcome.
async fn outcome(
    found: &FoundObject<Semaphore>,
    request: &RevokeRequest,
    timeout: Duration,
) -> Result<Event, Failure> {
    // Names of objects need no quotes in a shell.
    let (name, namespace) = (found.object.name_any(), found.object.namespace().unwrap_or_default());
    let events: Api<Event> = found.beside();
    let about = ListParams::default().fields(&format!("regarding.name={name}"));
    let end = format!("asked at {}", request.at);
    let start = Instant::now();
    loop {
        let failed = |error: kube::Error| {
            let message = format!(
                "revocation requested, but its result could not be read ({}): see kubectl -n {namespace} describe sem {name}",
                explain(&error)
            );
            Failure::new(Failure::UNAVAILABLE, message)
        };
        let all = events.list(&about).await.map_err(failed)?;
        let told = all.items.into_iter().find(|event| {
            matches!(event.reason.as_deref(), Some(REVOKED | REFUSED))
                && event.note.as_ref().is_some_and(|note| note.ends_with(&end))
        });
        if let Some(told) = told {
            return Ok(told);
        }
        if start.elapsed() >= timeout {
            let message = format!(
                "the operator has not answered within {timeout:?}, and may yet do it: see kubectl -n {namespace} describe sem {name}, or take the request back by kubectl -n {namespace} annotate sem {name} {REVOKE}-"
            );
            return Err(Failure::new(Failure::NOT_ACQUIRED, message));
        }
        tokio::time::sleep(LOOK).await;
    }
}
