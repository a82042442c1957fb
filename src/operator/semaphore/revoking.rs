//! Revokes slots: on request by the annotation, or because their holders have been
//! draining for too long. Decides when, and reports the result. See
//! [`Broker::revoke`](lockkeeper_semaphore::Broker::revoke) for how.

use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use lockkeeper_api::revoke::RevokeRequest;
use lockkeeper_api::{REVOKE, Semaphore};
use lockkeeper_plan::clean_text;
use lockkeeper_plan::semaphore::Holder;
use lockkeeper_semaphore::{BrokerError, Revocation, RevokeError};

use super::apply::Step;
use super::holding::Holding;
use super::state::SemaphoreState;
use crate::operator::api_error::explain;
use crate::operator::context::Context;
use crate::operator::outcome::EventRecord;

/// Retry interval after a draining holder could not be revoked.
const AGAIN: Duration = Duration::from_secs(60);

/// Returns the revocation request of the object, if any.
fn request(semaphore: &Semaphore) -> Option<&String> {
    semaphore.annotations().get(REVOKE)
}

impl Step<'_> {
    /// Revokes slots as requested or due. Returns the time until the next observation, if
    /// that is soon.
    pub(super) async fn revoke(
        &self,
        holding: &mut Holding,
        holders: &[Holder],
        notes: &mut Vec<EventRecord>,
    ) -> Result<Option<Duration>, BrokerError> {
        holding.follow(holders);
        let asked = self.answer(holding, notes).await?;
        let drained = self.revoke_drained(holding, notes).await?;
        Ok(asked.into_iter().chain(drained).min())
    }

    /// Handles the revocation request of the object.
    async fn answer(
        &self,
        holding: &mut Holding,
        notes: &mut Vec<EventRecord>,
    ) -> Result<Option<Duration>, BrokerError> {
        let Some(text) = request(self.semaphore) else {
            holding.request = None;
            return Ok(None);
        };
        let since = match &holding.request {
            Some((known, _)) if known == text && holding.handled => {
                return Ok(Some(Revocation::RETRY_INTERVAL));
            }
            Some((known, since)) if known == text => *since,
            _ => Instant::now(),
        };
        holding.request = Some((text.clone(), since));
        holding.handled = false;
        let note = match RevokeRequest::parse(text) {
            Err(why) => refused(None, &format!("the annotation {REVOKE} is not understood: {why}")),
            Ok(asked) if self.valid.suspend => refused(Some(&asked), "suspend is true"),
            Ok(asked) => {
                let known_for = holding.known_for(asked.slot, &asked.holder);
                let what = Revocation {
                    slot: asked.slot,
                    holder: asked.holder.clone(),
                    reason: asked.reason.clone(),
                    force: asked.force,
                    known_for,
                };
                match self.take(&what).await {
                    Ok(()) => revoked(&asked),
                    Err(RevokeError::Broker(error @ BrokerError::Interrupted)) => {
                        return Err(error);
                    }
                    // A recent holder, or the death of one, becomes known within seconds,
                    // and a busy management API answers again.
                    Err(
                        RevokeError::Unsure { .. }
                        | RevokeError::Broker(_)
                        | RevokeError::Management(_),
                    ) if since.elapsed() < Revocation::RETRY_FOR => {
                        return Ok(Some(Revocation::RETRY_INTERVAL));
                    }
                    Err(error) => refused(Some(&asked), &error.to_string()),
                }
            }
        };
        holding.handled = true;
        notes.push(note);
        Ok(Some(Revocation::RETRY_INTERVAL))
    }

    /// Revokes holders that have drained for longer than the spec allows.
    async fn revoke_drained(
        &self,
        holding: &mut Holding,
        notes: &mut Vec<EventRecord>,
    ) -> Result<Option<Duration>, BrokerError> {
        let Some(after) = self.valid.revoke_after.filter(|_| !self.valid.suspend) else {
            return Ok(None);
        };
        let drain = self.semaphore.spec.drain.as_ref();
        let limit = drain.and_then(|drain| drain.revoke_after.as_deref()).unwrap_or_default();
        let mut next: Option<Duration> = None;
        for ((slot, id), known) in &mut holding.holders {
            let Some(since) = known.draining else { continue };
            let pause = known.failed.map(|at| AGAIN.saturating_sub(at.elapsed()));
            let left = after.saturating_sub(since.elapsed()).max(pause.unwrap_or_default());
            if !left.is_zero() {
                next = Some(next.map_or(left, |next| next.min(left)));
                continue;
            }
            let what = Revocation {
                slot: *slot,
                holder: id.clone(),
                reason: format!("it drained for longer than {limit}"),
                force: false,
                known_for: known.since.elapsed(),
            };
            let asked = RevokeRequest {
                slot: *slot,
                holder: id.clone(),
                reason: what.reason.clone(),
                force: false,
                at: String::new(),
            };
            match self.take(&what).await {
                Ok(()) => notes.push(revoked(&asked)),
                Err(RevokeError::Broker(error @ BrokerError::Interrupted)) => return Err(error),
                Err(RevokeError::NotHeld) => {}
                Err(error) => {
                    // Reported once, then retried silently.
                    if known.failed.is_none() {
                        notes.push(refused(Some(&asked), &error.to_string()));
                    }
                    known.failed = Some(Instant::now());
                    continue;
                }
            }
            next = Some(Revocation::RETRY_INTERVAL);
        }
        Ok(next)
    }

    async fn take(&self, what: &Revocation) -> Result<(), RevokeError> {
        let (lock, desired) = (&self.valid.lock, self.valid.desired);
        self.broker.revoke(lock, desired, what, &self.ctx.stop).await
    }
}

/// Removes the request from the object once its result was reported. Removes only this
/// request, because there may be a new one.
pub(super) async fn clear(ctx: &Context, semaphore: &Semaphore, memory: &mut SemaphoreState) {
    let holding = &memory.detail.holding;
    let (Some(text), true) = (request(semaphore), holding.handled) else { return };
    if holding.request.as_ref().is_none_or(|(handled, _)| handled != text) {
        return;
    }
    // Applies only to the known version of the object, so that a concurrent new request
    // is not lost. (A JSON patch cannot test the text: the API server compares it
    // escaped, and names of connections contain a `>`.)
    let patch = Patch::Merge(serde_json::json!({"metadata": {
        "uid": semaphore.uid(),
        "resourceVersion": memory.newest_version(semaphore),
        "annotations": {REVOKE: null},
    }}));
    let api = ctx.api_of(semaphore);
    match api.patch(&semaphore.name_any(), &PatchParams::default(), &patch).await {
        Ok(_) => {}
        // The object was changed or deleted concurrently. It is observed again soon.
        Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => {}
        Err(error) => {
            tracing::warn!(error = explain(&error), "the request {REVOKE} could not be taken off");
        }
    }
}

/// Describes the slot and its holder for an event.
fn subject(asked: &RevokeRequest) -> String {
    let what = asked.slot.map_or_else(|| "a token".to_owned(), |slot| format!("slot {slot}"));
    format!("{what} from holder {}", clean_text(&asked.holder, 200))
}

fn asked_at(asked: &RevokeRequest) -> String {
    if asked.at.is_empty() { String::new() } else { format!("; asked at {}", asked.at) }
}

/// Returns the action of an event. Events with the same action count as repeats of each
/// other, so it contains the holder.
fn action(asked: &RevokeRequest) -> String {
    let slot = asked.slot.map(|slot| slot.to_string()).unwrap_or_default();
    let words = asked.holder.chars().chain(asked.at.chars()).filter(char::is_ascii_alphanumeric);
    format!("Revoke{slot}Of{}", words.take(90).collect::<String>())
}

fn revoked(asked: &RevokeRequest) -> EventRecord {
    let force = if asked.force { " (forced)" } else { "" };
    let message = format!("Revoked {}{force}: {}{}", subject(asked), asked.reason, asked_at(asked));
    EventRecord::new(true, "HolderRevoked", message).action(action(asked))
}

fn refused(asked: Option<&RevokeRequest>, why: &str) -> EventRecord {
    let Some(asked) = asked else {
        let message = format!("Revocation rejected: {why}");
        return EventRecord::new(true, "RevokeRefused", message).action("Revoke");
    };
    let why = clean_text(why, 500);
    let message = format!("Did not revoke {}: {why}{}", subject(asked), asked_at(asked));
    EventRecord::new(true, "RevokeRefused", message).action(action(asked))
}
