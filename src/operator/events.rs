//! Publishes events at a limited rate: a change of a thousand objects is a thousand
//! events, which must not delay the status writes of other objects. See `status_writer` for
//! which events are published.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as StoredEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use lockkeeper_api::FIELD_MANAGER;
use lockkeeper_net::clock::token_bucket::TokenBucket;
use tokio::sync::{Mutex, mpsc};
use tracing::{debug, warn};

use super::api_error::explain;
use super::short_name::shortened;

/// Number of events that may be published without delay.
const BURST: u32 = 25;

/// Interval between events after a burst.
const PACE: Duration = Duration::from_millis(100);

/// Maximum number of pending events. Further events are only logged.
const BACKLOG: usize = 5000;

/// Maximum length of an object's name in the name of its event: kube's recorder adds a dot
/// and the time, in 16 digits, and a name has at most 253 characters.
const NAME: usize = 253 - 17;

/// The publisher of events.
pub struct Events {
    sink: Sink,
    limit: Mutex<TokenBucket>,
    later: mpsc::Sender<(Event, ObjectReference)>,
}

impl Events {
    /// Returns the publisher, and a future that must run while it is used: it publishes
    /// delayed events.
    pub fn new(client: Client) -> (Self, impl Future<Output = ()>) {
        let recorder = Recorder::new(client.clone(), Reporter::from(FIELD_MANAGER));
        let sink = Sink { client, recorder };
        let (later, mut waiting) = mpsc::channel::<(Event, ObjectReference)>(BACKLOG);
        let limit = Mutex::new(TokenBucket::full(BURST, PACE, Instant::now()));
        let events = Self { sink: sink.clone(), limit, later };
        let work = async move {
            while let Some((event, about)) = waiting.recv().await {
                sink.publish(&event, &about).await;
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
            self.sink.publish(&event, &about).await;
        } else if let Err(error) = self.later.try_send((event, about)) {
            warn!(%error, "too many events: one is not published");
        }
    }
}

/// Writes events to the API server.
#[derive(Clone)]
struct Sink {
    client: Client,
    recorder: Recorder,
}

impl Sink {
    async fn publish(&self, event: &Event, about: &ObjectReference) {
        let is_long = about.name.as_ref().is_some_and(|name| name.len() > NAME);
        let published = if is_long {
            self.create(event, about).await
        } else {
            self.recorder.publish(event, about).await
        };
        match published {
            Ok(()) => {}
            Err(error) if is_of_terminating_namespace(&error) => {
                debug!(reason = event.reason, "a namespace that is going takes no new event");
            }
            Err(error) => {
                warn!(error = explain(&error), reason = event.reason, "could not publish an event");
            }
        }
    }

    /// Creates an event of an object whose name is too long for the recorder, which names
    /// events after their objects. Repeated events of such an object are not combined.
    async fn create(&self, event: &Event, about: &ObjectReference) -> kube::Result<()> {
        let now = Timestamp::now();
        let name = shortened(about.name.as_deref().unwrap_or_default(), NAME);
        let stored = StoredEvent {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                ..ObjectMeta::default()
            },
            action: Some(event.action.clone()),
            event_time: Some(MicroTime(now)),
            note: event.note.clone(),
            reason: Some(event.reason.clone()),
            regarding: Some(about.clone()),
            related: event.secondary.clone(),
            reporting_controller: Some(FIELD_MANAGER.to_owned()),
            reporting_instance: Some(FIELD_MANAGER.to_owned()),
            type_: Some(match event.type_ {
                EventType::Normal => "Normal".to_owned(),
                EventType::Warning => "Warning".to_owned(),
            }),
            ..StoredEvent::default()
        };
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let api = Api::<StoredEvent>::namespaced(self.client.clone(), namespace);
        api.create(&PostParams::default(), &stored).await.map(drop)
    }
}

/// Returns whether the error only means that the namespace is terminating. The API server
/// reports that as forbidden, although no permission is missing.
fn is_of_terminating_namespace(error: &kube::Error) -> bool {
    let kube::Error::Api(answer) = error else { return false };
    let causes = answer.details.as_ref().map_or(&[][..], |details| &details.causes);
    causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}
