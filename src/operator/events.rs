//! Publishing events at a measured pace: a change of a thousand objects at once
//! is a thousand events, and their writes must not stand in line before the
//! status of those that are not done yet. What deserves an event is `report`'s.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, Recorder, Reporter};
use tokio::sync::{Mutex, mpsc};
use tracing::{debug, warn};

use crate::api::FIELD_MANAGER;

/// So many events go out at once.
const BURST: u32 = 25;

/// After a burst, one event per this time.
const PACE: Duration = Duration::from_millis(100);

/// Most events that wait; further ones are only logged.
const BACKLOG: usize = 5000;

/// Where events go.
pub struct Events {
    recorder: Recorder,
    pace: Mutex<Pace>,
    later: mpsc::Sender<(Event, ObjectReference)>,
}

impl Events {
    /// The publisher, and the work that must run beside it for as long as it is
    /// used: it publishes what had to wait.
    pub fn new(client: Client) -> (Self, impl Future<Output = ()>) {
        let recorder = Recorder::new(client, Reporter::from(FIELD_MANAGER));
        let (later, mut waiting) = mpsc::channel::<(Event, ObjectReference)>(BACKLOG);
        let events = Self { recorder: recorder.clone(), pace: Mutex::default(), later };
        let work = async move {
            while let Some((event, about)) = waiting.recv().await {
                publish(&recorder, &event, &about).await;
                tokio::time::sleep(PACE).await;
            }
        };
        (events, work)
    }

    /// Publishes an event: at once, unless there were many lately. A failure is
    /// logged: events are a courtesy, and must not keep a lock from being right.
    pub async fn publish(&self, event: Event, about: ObjectReference) {
        let nobody_waits = self.later.capacity() == self.later.max_capacity();
        if nobody_waits && self.pace.lock().await.may_go(Instant::now()) {
            publish(&self.recorder, &event, &about).await;
        } else if let Err(error) = self.later.try_send((event, about)) {
            warn!(%error, "too many events: one is not published");
        }
    }
}

async fn publish(recorder: &Recorder, event: &Event, about: &ObjectReference) {
    match recorder.publish(event, about).await {
        Ok(()) => {}
        Err(error) if is_of_terminating_namespace(&error) => {
            debug!(reason = event.reason, "a namespace that is going takes no new event");
        }
        Err(error) => warn!(%error, reason = event.reason, "could not publish an event"),
    }
}

/// Whether it is only that nothing can be created in the namespace any more: the
/// API server calls that forbidden, but no right is missing.
fn is_of_terminating_namespace(error: &kube::Error) -> bool {
    let kube::Error::Api(answer) = error else { return false };
    let causes = answer.details.as_ref().map_or(&[][..], |details| &details.causes);
    causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// How many more may go: [`BURST`] after a rest, and one more each [`PACE`].
struct Pace {
    left: u32,
    counted: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { left: BURST, counted: None }
    }
}

impl Pace {
    fn may_go(&mut self, now: Instant) -> bool {
        let counted = *self.counted.get_or_insert(now);
        let earned = now.duration_since(counted).as_millis() / PACE.as_millis();
        if let Ok(earned @ 1..) = u32::try_from(earned) {
            self.left = self.left.saturating_add(earned).min(BURST);
            self.counted = Some(counted + PACE * earned);
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_then_one_at_a_time() {
        let mut pace = Pace::default();
        let start = Instant::now();
        assert!((0..BURST).all(|_| pace.may_go(start)));
        assert!(!pace.may_go(start));
        assert!(!pace.may_go(start + PACE / 2));
        assert!(pace.may_go(start + PACE));
        assert!(!pace.may_go(start + PACE));
        let rested = start + PACE * 1000;
        assert_eq!((0..1000).filter(|_| pace.may_go(rested)).count(), BURST as usize);
    }
}
