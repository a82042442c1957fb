//! One stream of events out of the watches of several namespaces, so that one
//! controller and one cache serve them all. A namespace that cannot be watched holds up
//! no other (hazard K26). See `decoding` for objects that cannot be read, and `unwatched`
//! for objects that leave the watch.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::ready;
use futures::stream::{self, BoxStream, FuturesUnordered, StreamFuture};
use futures::{Stream, StreamExt, TryStreamExt};
use kube::api::ListParams;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::events::{Event as ObjectEvent, EventType};
use kube::runtime::reflector::Store as Cache;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use lockkeeper_plan::clean_text;
use tracing::{error, warn};

use super::api_error::{explain, is_forbidden};
use super::context::Context;
use super::decoding::Decoder;
use super::error::jitter;
use super::kind::Kind;
use super::reduced::Reduced;
use super::status_writer::MAX_NOTE_BYTES;

/// Pause between two log messages about a kind that is not installed.
const REPORT_AGAIN: Duration = Duration::from_secs(30);

/// Waits until a kind is installed, because the operator may be installed before its
/// resource definitions. One namespace that can be listed is enough. Namespaces that
/// cannot be listed are retried by their own watches.
pub async fn until_installed<K: Kind>(apis: &[Api<Reduced<K>>], config: &watcher::Config) {
    let mut one = ListParams::default().limit(1);
    one.label_selector.clone_from(&config.label_selector);
    let mut reported = None::<Instant>;
    loop {
        let is_due = reported.is_none_or(|at| at.elapsed() >= REPORT_AGAIN);
        if is_due {
            reported = Some(Instant::now());
        }
        for api in apis {
            let Err(error) = api.list(&one).await else { return };
            let advice = match &error {
                kube::Error::Api(answer) if answer.is_not_found() => {
                    "the API server does not know this kind: apply crds/"
                }
                kube::Error::Api(answer) if answer.is_forbidden() => {
                    "the operator may not list this kind here: check that the namespace exists and has the operator's Role"
                }
                _ => "trying again",
            };
            if is_due {
                error!(error = explain(&error), namespace = api.namespace(), kind = %K::kind(&()), "cannot list: {advice}");
            }
        }
        tokio::time::sleep(jitter(Duration::from_secs(2))).await;
    }
}

/// Merges the events of all these watches. The first list is complete once every
/// namespace was listed, except those that the operator has no permission to list, so
/// that no decision is based on a partial cache. `cache` is the destination of the
/// events.
pub fn of<K: Kind>(
    mut apis: Vec<Api<Reduced<K>>>,
    config: &watcher::Config,
    cache: &Cache<K>,
    ctx: &Arc<Context>,
) -> BoxStream<'static, watcher::Result<Event<K>>> {
    let one = |api: Api<_>| {
        let namespace = api.namespace().unwrap_or_default().to_owned();
        // Each watch has its own backoff, so that a failing one does not delay the
        // others.
        let events = watcher(api, config.clone()).default_backoff();
        let events = readable(events, namespace.clone(), cache.clone(), ctx);
        let events = events.inspect_err({
            let namespace = namespace.clone();
            move |error| warn!(error = explain(error), namespace, kind = %K::kind(&()), "the watch failed, trying again")
        });
        (namespace, events.boxed())
    };
    if apis.len() == 1 {
        return one(apis.remove(0)).1;
    }
    let watches = apis.into_iter().map(one).collect();
    merged(watches, cache.clone()).map(Ok).boxed()
}

/// Returns the events about readable objects. Reports the others.
fn readable<K: Kind>(
    events: impl Stream<Item = watcher::Result<Event<Reduced<K>>>> + Send + 'static,
    namespace: String,
    cache: Cache<K>,
    ctx: &Arc<Context>,
) -> BoxStream<'static, watcher::Result<Event<K>>> {
    let ctx = Arc::clone(ctx);
    let mut decoder = Decoder::new(cache, ctx.metrics.clone());
    let read = move |event| match event {
        Ok(event) => {
            let (event, unreadable) = decoder.read(event);
            if let Some(object) = unreadable {
                tokio::spawn(report_unreadable::<K>(Arc::clone(&ctx), object));
            }
            ready(event.map(Ok))
        }
        Err(error) => {
            ctx.metrics.watch_failed(&K::kind(&()), &namespace);
            ready(Some(Err(error)))
        }
    };
    events.filter_map(read).boxed()
}

/// Reports an unreadable object and the reason, in the log and as an event.
async fn report_unreadable<K: Kind>(ctx: Arc<Context>, object: InvalidObject) {
    // The text of an unreadable object is arbitrary.
    let why = clean_text(&object.error, MAX_NOTE_BYTES / 2);
    let message = format!(
        "This version of the operator cannot read the object, and leaves it and its server alone: {why}. Install the version that wrote the object, or correct it"
    );
    let object = Reduced::<K>(Err(object));
    warn!(namespace = object.namespace(), name = object.name_any(), kind = %K::kind(&()), "{message}");
    let event = ObjectEvent {
        type_: EventType::Warning,
        reason: "Unreadable".to_owned(),
        note: Some(message),
        action: "Read".to_owned(),
        secondary: None,
    };
    ctx.events.publish(event, object.object_ref(&())).await;
}

/// Merges the event streams of several namespaces.
fn merged<K: Kind>(
    watches: Vec<(String, BoxStream<'static, watcher::Result<Event<K>>>)>,
    cache: Cache<K>,
) -> impl Stream<Item = Event<K>> + Send {
    let mut all = Merged {
        namespaces: Vec::new(),
        seen: Vec::new(),
        watches: FuturesUnordered::new(),
        listed: Vec::new(),
        complete: false,
        stale: Vec::new(),
        next: VecDeque::from([Event::Init]),
        cache,
    };
    for (number, (namespace, events)) in watches.into_iter().enumerate() {
        all.namespaces.push(namespace);
        all.seen.push(HashSet::new());
        all.watches.push(events.map(move |event| (number, event)).boxed().into_future());
    }
    stream::unfold(all, async |mut all| all.next().await.map(|event| (event, all)))
}

/// A watch and its number.
type Watch<K> = BoxStream<'static, (usize, watcher::Result<Event<K>>)>;

struct Merged<K: Kind> {
    /// Namespaces, by the numbers of the watches.
    namespaces: Vec<String>,
    /// The names that the newest list of each watch has contained so far.
    seen: Vec<HashSet<String>>,
    watches: FuturesUnordered<StreamFuture<Watch<K>>>,
    /// Watches whose first list is complete or forbidden, while the first list of another
    /// is neither. They are paused, so that no change has to be buffered until the cache
    /// accepts changes.
    listed: Vec<Watch<K>>,
    /// Whether every namespace was listed once, or must not be listed.
    complete: bool,
    /// Watches with a complete list. Cached objects that are not in it no longer exist.
    stale: Vec<usize>,
    next: VecDeque<Event<K>>,
    cache: Cache<K>,
}

impl<K: Kind> Merged<K> {
    async fn next(&mut self) -> Option<Event<K>> {
        loop {
            if let Some(event) = self.next.pop_front() {
                return Some(event);
            }
            // Only here does the cache contain all events that were returned before.
            while let Some(number) = self.stale.pop() {
                self.forget(number);
            }
            if let Some(event) = self.next.pop_front() {
                return Some(event);
            }
            let (Some((number, event)), watch) = self.watches.next().await? else { continue };
            let is_listed = match &event {
                Ok(event) => matches!(event, Event::InitDone),
                // For example because the namespace was deleted together with its Role.
                Err(error) => is_forbidden(error),
            };
            if !self.complete && is_listed {
                self.listed.push(watch);
            } else {
                self.watches.push(watch.into_future());
            }
            if let Ok(event) = event {
                self.take(number, event);
            }
            if !self.complete && self.watches.is_empty() {
                self.complete();
            }
        }
    }

    /// Starts to pass changes to the cache.
    fn complete(&mut self) {
        self.complete = true;
        self.watches.extend(self.listed.drain(..).map(StreamExt::into_future));
        // A list that was restarted may have contained more objects the first time.
        self.stale.extend(0..self.namespaces.len());
        self.next.push_back(Event::InitDone);
    }

    fn take(&mut self, number: usize, event: Event<K>) {
        match event {
            // Init concerns one namespace, but the cache would drop all of them.
            Event::Init => self.seen[number].clear(),
            Event::InitApply(object) => {
                self.seen[number].insert(object.name_any());
                self.next.push_back(if self.complete {
                    Event::Apply(object)
                } else {
                    Event::InitApply(object)
                });
            }
            Event::InitDone if self.complete => self.stale.push(number),
            Event::InitDone => {}
            Event::Apply(_) | Event::Delete(_) => self.next.push_back(event),
        }
    }

    /// Deletes cached objects of the namespace that its complete list did not contain.
    fn forget(&mut self, number: usize) {
        let seen = std::mem::take(&mut self.seen[number]);
        let namespace = Some(self.namespaces[number].as_str());
        for object in self.cache.state() {
            if object.meta().namespace.as_deref() == namespace && !seen.contains(&object.name_any())
            {
                self.next.push_back(Event::Delete((*object).clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::channel::mpsc;
    use kube::core::Status;
    use kube::runtime::reflector;
    use lockkeeper_api::Semaphore;

    use super::*;

    fn object(namespace: &str, name: &str) -> Semaphore {
        let text = format!("{{metadata: {{name: {name}, namespace: {namespace}}}, spec: {{}}}}");
        serde_yaml::from_str(&text).unwrap()
    }

    fn listed(
        events: &mpsc::UnboundedSender<watcher::Result<Event<Semaphore>>>,
        namespace: &str,
        names: &[&str],
    ) {
        events.unbounded_send(Ok(Event::Init)).unwrap();
        for name in names {
            events.unbounded_send(Ok(Event::InitApply(object(namespace, name)))).unwrap();
        }
        events.unbounded_send(Ok(Event::InitDone)).unwrap();
    }

    /// Two watched namespaces, `a` and `b`, whose events the test chooses.
    #[tokio::test]
    async fn a_new_list_of_one_namespace_leaves_the_others_in_the_cache() {
        let (cache, writer) = reflector::store::<Semaphore>();
        let (a, events_of_a) = mpsc::unbounded();
        let (b, events_of_b) = mpsc::unbounded();
        let watches =
            vec![("a".to_owned(), events_of_a.boxed()), ("b".to_owned(), events_of_b.boxed())];
        let mut events = merged(watches, cache.clone()).map(Ok).reflect(writer).boxed();
        let mut handled = async |count: usize| {
            for _ in 0..count {
                let _ = events.next().await.unwrap().unwrap();
            }
        };
        let names = || {
            let mut names: Vec<String> = cache.state().iter().map(|o| o.name_any()).collect();
            names.sort();
            names
        };

        listed(&a, "a", &["a1", "a2"]);
        a.unbounded_send(Ok(Event::Apply(object("a", "a3")))).unwrap();
        handled(3).await;
        assert!(names().is_empty(), "b was not listed yet: {:?}", names());
        // The list is restarted, and b2 was deleted in between.
        b.unbounded_send(Ok(Event::Init)).unwrap();
        b.unbounded_send(Ok(Event::InitApply(object("b", "b2")))).unwrap();
        listed(&b, "b", &["b1"]);
        handled(5).await;
        assert_eq!(names(), ["a1", "a2", "a3", "b1"]);

        // The watch of `a` broke. Until it was restored, a1 was deleted and a4 created.
        listed(&a, "a", &["a2", "a3", "a4"]);
        handled(4).await;
        assert_eq!(names(), ["a2", "a3", "a4", "b1"]);
        b.unbounded_send(Ok(Event::Delete(object("b", "b1")))).unwrap();
        handled(1).await;
        assert_eq!(names(), ["a2", "a3", "a4"]);
    }
    #[tokio::test]
    async fn a_namespace_that_may_not_be_listed_holds_up_no_other() {
        let (cache, writer) = reflector::store::<Semaphore>();
        let (a, events_of_a) = mpsc::unbounded();
        let (b, events_of_b) = mpsc::unbounded();
        let watches =
            vec![("a".to_owned(), events_of_a.boxed()), ("b".to_owned(), events_of_b.boxed())];
        let mut events = merged(watches, cache.clone()).map(Ok).reflect(writer).boxed();
        let refused = |code, reason: &str| {
            let answer = Status::failure("no", reason).with_code(code);
            Err(watcher::Error::InitialListFailed(kube::Error::Api(answer.boxed())))
        };
        let names = || cache.state().iter().map(|o| o.name_any()).collect::<Vec<_>>();

        // Errors of the API server may hide objects that own names of others, so the
        // first list is awaited.
        b.unbounded_send(Ok(Event::Init)).unwrap();
        b.unbounded_send(refused(500, "InternalError")).unwrap();
        listed(&a, "a", &["a1"]);
        for _ in 0..2 {
            let _ = events.next().await.unwrap().unwrap();
        }
        assert!(events.next().now_or_never().is_none(), "b may be listed yet");
        b.unbounded_send(refused(403, "Forbidden")).unwrap();
        let _ = events.next().await.unwrap().unwrap();
        assert_eq!(names(), ["a1"]);
        // The permissions are restored.
        listed(&b, "b", &["b1"]);
        let _ = events.next().await.unwrap().unwrap();
        assert_eq!(names().len(), 2);
    }
}
