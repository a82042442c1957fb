//! Slots that are taken from their holders: because the annotation says so, or
//! because they have drained for too long. How they are taken is
//! [`Broker::revoke`](crate::semaphore::Broker::revoke)'s; here is when, and what is
//! told of it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};

use super::{Findings, SemaphoreMemory, Step};
use crate::api::revoke::RevokeRequest;
use crate::api::{REVOKE, Semaphore};
use crate::operator::context::Context;
use crate::operator::report::Note;
use crate::plan::clean_text;
use crate::plan::semaphore::Holder;
use crate::semaphore::{BrokerError, Revocation, RevokeError};

/// After a holder could not be revoked that drains, it is tried again after this long.
const AGAIN: Duration = Duration::from_secs(60);

/// While who holds is not known well enough, a request is tried again for this long,
const UNSURE_FOR: Duration = Duration::from_secs(30);

/// this often.
const UNSURE: Duration = Duration::from_secs(1);

/// What is remembered of holders. After a restart all of them are new: so nobody is
/// revoked too early.
#[derive(Default)]
pub struct Holding {
    holders: HashMap<(Option<u32>, String), Known>,
    /// The request that was handled last, or is about to be, and since when.
    request: Option<(String, Instant)>,
    /// It was: what is left is to take it off the object.
    handled: bool,
}

struct Known {
    since: Instant,
    /// Since when it drains.
    draining: Option<Instant>,
    /// When it could not be revoked, for the last time.
    failed: Option<Instant>,
}

impl Holding {
    /// Takes note of who holds.
    fn follow(&mut self, list: &[Holder]) {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.holders);
        for holder in list {
            let key = (holder.slot, holder.id.clone());
            let known = before.remove(&key);
            let mut known = known.unwrap_or(Known { since: now, draining: None, failed: None });
            known.draining = holder.draining.then(|| known.draining.unwrap_or(now));
            self.holders.insert(key, known);
        }
    }

    fn known_for(&self, slot: Option<u32>, id: &str) -> Duration {
        let known = self.holders.get(&(slot, id.to_owned()));
        known.map(|known| known.since.elapsed()).unwrap_or_default()
    }
}

/// The object's request, if it has one.
fn request(semaphore: &Semaphore) -> Option<&String> {
    semaphore.annotations().get(REVOKE)
}

impl Step<'_> {
    /// Revokes who is to be revoked; when to look again, if that is soon.
    pub(super) async fn revoke(
        &self,
        memory: &mut SemaphoreMemory,
        found: &mut Findings,
    ) -> Result<Option<Duration>, BrokerError> {
        let holding = &mut memory.detail.holding;
        if let Some(holders) = &found.holders {
            holding.follow(&holders.list);
        }
        let asked = self.answer(holding, found).await?;
        let drained = self.revoke_drained(holding, found).await?;
        Ok(asked.into_iter().chain(drained).min())
    }

    /// Carries the request out that the object has.
    async fn answer(
        &self,
        holding: &mut Holding,
        found: &mut Findings,
    ) -> Result<Option<Duration>, BrokerError> {
        let Some(text) = request(self.semaphore) else {
            holding.request = None;
            return Ok(None);
        };
        let since = match &holding.request {
            Some((known, _)) if known == text && holding.handled => return Ok(Some(UNSURE)),
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
                    // Who came lately is known after some seconds, and so is what died.
                    Err(RevokeError::Unsure { .. } | RevokeError::Broker(_))
                        if since.elapsed() < UNSURE_FOR =>
                    {
                        return Ok(Some(UNSURE));
                    }
                    Err(error) => refused(Some(&asked), &error.to_string()),
                }
            }
        };
        holding.handled = true;
        found.notes.push(note);
        Ok(Some(UNSURE))
    }

    /// Revokes those who have drained for longer than the spec lets them.
    async fn revoke_drained(
        &self,
        holding: &mut Holding,
        found: &mut Findings,
    ) -> Result<Option<Duration>, BrokerError> {
        let Some(after) = self.valid.revoke_after.filter(|_| !self.valid.suspend) else {
            return Ok(None);
        };
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
                reason: format!("it drained for longer than {after:?}"),
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
                Ok(()) => found.notes.push(revoked(&asked)),
                Err(RevokeError::Broker(error @ BrokerError::Interrupted)) => return Err(error),
                Err(RevokeError::NotHeld) => {}
                Err(error) => {
                    // Told once, and tried again without a word.
                    if known.failed.is_none() {
                        found.notes.push(refused(Some(&asked), &error.to_string()));
                    }
                    known.failed = Some(Instant::now());
                    continue;
                }
            }
            next = Some(UNSURE);
        }
        Ok(next)
    }

    async fn take(&self, what: &Revocation) -> Result<(), RevokeError> {
        let (lock, wish) = (&self.valid.lock, self.valid.wish);
        self.broker.revoke(lock, wish, what, &self.ctx.stop).await
    }
}

/// Takes the request off the object, once what became of it was told. Only this one:
/// there may be another by now.
pub(super) async fn clear(ctx: &Context, semaphore: &Semaphore, memory: &mut SemaphoreMemory) {
    let holding = &memory.detail.holding;
    let (Some(text), true) = (request(semaphore), holding.handled) else { return };
    if holding.request.as_ref().is_none_or(|(handled, _)| handled != text) {
        return;
    }
    // Only over the object as it is known: whoever asks for something else meanwhile is
    // not to be overlooked. (A JSON patch can't test the text: the API server compares
    // it escaped, and connections' names have a `>`.)
    let patch = Patch::Merge(serde_json::json!({"metadata": {
        "uid": semaphore.uid(),
        "resourceVersion": memory.newest_version(semaphore),
        "annotations": {REVOKE: null},
    }}));
    let api = ctx.api_of(semaphore);
    match api.patch(&semaphore.name_any(), &PatchParams::default(), &patch).await {
        Ok(_) => {}
        // Changed or gone meanwhile: looked at again soon.
        Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => {}
        Err(error) => tracing::warn!(%error, "the request {REVOKE} could not be taken off"),
    }
}

/// Which slot of whom, for an event.
fn subject(asked: &RevokeRequest) -> String {
    let what = asked.slot.map_or_else(|| "a token".to_owned(), |slot| format!("slot {slot}"));
    format!("{what} of the holder {}", clean_text(&asked.holder, 200))
}

fn asked_at(asked: &RevokeRequest) -> String {
    if asked.at.is_empty() { String::new() } else { format!("; asked at {}", asked.at) }
}

/// Events with one action count as repeats of each other, so it names the holder.
fn action(asked: &RevokeRequest) -> String {
    let slot = asked.slot.map(|slot| slot.to_string()).unwrap_or_default();
    let words = asked.holder.chars().chain(asked.at.chars()).filter(char::is_ascii_alphanumeric);
    format!("Revoke{slot}Of{}", words.take(90).collect::<String>())
}

fn revoked(asked: &RevokeRequest) -> Note {
    let force = if asked.force { ", with force" } else { "" };
    let message =
        format!("{} was taken away{force}: {}{}", subject(asked), asked.reason, asked_at(asked));
    Note::new(true, "HolderRevoked", message).action(action(asked))
}

fn refused(asked: Option<&RevokeRequest>, why: &str) -> Note {
    let Some(asked) = asked else {
        let message = format!("Nothing was taken from anybody: {why}");
        return Note::new(true, "RevokeRefused", message).action("Revoke");
    };
    let why = clean_text(why, 500);
    let message = format!("{} was not taken away: {why}{}", subject(asked), asked_at(asked));
    Note::new(true, "RevokeRefused", message).action(action(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(slot: u32, id: &str, draining: bool) -> Holder {
        let (id, slot) = (id.to_owned(), Some(slot));
        let (identity, reason, url, since, connection) = (None, None, None, None, None);
        Holder { id, slot, identity, reason, url, since, connection, draining }
    }

    #[test]
    fn a_holder_drains_from_when_it_was_first_seen_to_and_anew_after_it_did_not() {
        let mut holding = Holding::default();
        let since = |holding: &Holding| holding.holders[&(Some(3), "a".to_owned())].draining;
        holding.follow(&[holder(3, "a", false)]);
        assert_eq!(since(&holding), None);
        holding.follow(&[holder(3, "a", true), holder(1, "b", false)]);
        let first = since(&holding).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        holding.follow(&[holder(3, "a", true)]);
        assert_eq!(since(&holding), Some(first));
        holding.follow(&[holder(3, "a", false)]);
        std::thread::sleep(Duration::from_millis(2));
        holding.follow(&[holder(3, "a", true)]);
        assert!(since(&holding).unwrap() > first);
        holding.follow(&[holder(3, "other", true)]);
        assert_eq!(holding.known_for(Some(3), "a"), Duration::ZERO);
    }
}
