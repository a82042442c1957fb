//! Publishes events at a limited rate: a change of a thousand objects is a thousand
//! events, which must not delay the status writes of other objects. See `report` for
//! which events are published.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, Recorder, Reporter};
use tokio::sync::{Mutex, mpsc};
use tracing::{debug, warn};

use crate::api::FIELD_MANAGER;

/// Number of events that may be published without delay.
const BURST: u32 = 25;

/// Interval between events after a burst.
const PACE: Duration = Duration::from_millis(100);

/// Maximum number of pending events. Further events are only logged.
const BACKLOG: usize = 5000;

/// The publisher of events.
pub struct Events {
    recorder: Recorder,
    pace: Mutex<Pace>,
    later: mpsc::Sender<(Event, ObjectReference)>,
}

impl Events {
    /// Returns the publisher, and a future that must run while it is used: it publishes
    /// delayed events.
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

    /// Publishes an event, delayed if there were many recently. A failure is only logged,
    /// because events must not block a reconcile.
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

/// Returns whether the error only means that the namespace is terminating. The API server
/// reports that as forbidden, although no permission is missing.
fn is_of_terminating_namespace(error: &kube::Error) -> bool {
    let kube::Error::Api(answer) = error else { return false };
    let causes = answer.details.as_ref().map_or(&[][..], |details| &details.causes);
    causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// Rate limit: [`BURST`] events after a pause, and one more for each [`PACE`].
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
