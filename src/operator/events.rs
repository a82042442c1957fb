//! Publishes events at a limited rate: a change of a thousand objects is a thousand
//! events, which must not delay the status writes of other objects. See `status_writer` for
//! which events are published.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, Recorder, Reporter};
use lockkeeper_api::FIELD_MANAGER;
use lockkeeper_net::clock::token_bucket::TokenBucket;
use tokio::sync::{Mutex, mpsc};
use tracing::{debug, warn};

use super::api_error::explain;

/// Number of events that may be published without delay.
const BURST: u32 = 25;

/// Interval between events after a burst.
const PACE: Duration = Duration::from_millis(100);

/// Maximum number of pending events. Further events are only logged.
const BACKLOG: usize = 5000;

/// The publisher of events.
pub struct Events {
    recorder: Recorder,
    limit: Mutex<TokenBucket>,
    later: mpsc::Sender<(Event, ObjectReference)>,
}

impl Events {
    /// Returns the publisher, and a future that must run while it is used: it publishes
    /// delayed events.
    pub fn new(client: Client) -> (Self, impl Future<Output = ()>) {
        let recorder = Recorder::new(client, Reporter::from(FIELD_MANAGER));
        let (later, mut waiting) = mpsc::channel::<(Event, ObjectReference)>(BACKLOG);
        let limit = Mutex::new(TokenBucket::full(BURST, PACE, Instant::now()));
        let events = Self { recorder: recorder.clone(), limit, later };
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
        if nobody_waits && self.limit.lock().await.take(Instant::now()).is_ok() {
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
        Err(error) => {
            warn!(error = explain(&error), reason = event.reason, "could not publish an event");
        }
    }
}

/// Returns whether the error only means that the namespace is terminating. The API server
/// reports that as forbidden, although no permission is missing.
fn is_of_terminating_namespace(error: &kube::Error) -> bool {
    let kube::Error::Api(answer) = error else { return false };
    let causes = answer.details.as_ref().map_or(&[][..], |details| &details.causes);
    causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}
