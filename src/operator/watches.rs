//! One stream of events out of the watches of several namespaces, so that one
//! controller and one cache serve them all. What an event leads to is not here.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures::future::ready;
use futures::stream::{self, BoxStream, FuturesUnordered, StreamFuture};
use futures::{Stream, StreamExt};
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::Store as Cache;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use tracing::{error, warn};

use super::error::jitter;
use super::report::Managed;

/// Waits until the API server knows a kind: the operator may well be installed
/// before its resource definitions are.
pub async fn until_installed<K: Managed>(api: &Api<K>, config: &watcher::Config) {
    let mut one = ListParams::default().limit(1);
    one.label_selector.clone_from(&config.label_selector);
    loop {
        match api.list(&one).await {
            Ok(_) => return,
            Err(error) => {
                error!(
                    %error,
                    namespace = api.namespace(),
                    "{} can't be listed; if the API server does not know them, apply crds/",
                    K::plural(&())
                );
            }
        }
        tokio::time::sleep(jitter(Duration::from_secs(2))).await;
    }
}

/// The events of all these watches. The first list is complete when every
/// namespace was listed: whoever waits for the cache never decides by a part of it.
/// `cache` is what the events go into.
pub fn of<K: Managed>(
    mut apis: Vec<Api<K>>,
    config: &watcher::Config,
    cache: Cache<K>,
) -> BoxStream<'static, watcher::Result<Event<K>>> {
    if apis.len() == 1 {
        return watcher(apis.remove(0), config.clone()).boxed();
    }
    let watches = apis.into_iter().map(|api| {
        let namespace = api.namespace().unwrap_or_default().to_owned();
        // One namespace that can't be watched must not slow the others down, so each
        // waits and complains by itself.
        let events = watcher(api, config.clone()).default_backoff().filter_map({
            let namespace = namespace.clone();
            move |event| {
                ready(event.inspect_err(|error| warn!(%error, namespace, "the watch failed")).ok())
            }
        });
        (namespace, events.boxed())
    });
    merged(watches.collect(), cache).map(Ok).boxed()
}

/// Namespaces with the events of their watches, as one stream.
fn merged<K: Managed>(
    watches: Vec<(String, BoxStream<'static, Event<K>>)>,
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

/// A watch, with its number.
type Watch<K> = BoxStream<'static, (usize, Event<K>)>;

struct Merged<K: Managed> {
    /// By the watches' numbers.
    namespaces: Vec<String>,
    /// The names that each one's newest list had so far.
    seen: Vec<HashSet<String>>,
    watches: FuturesUnordered<StreamFuture<Watch<K>>>,
    /// Those whose first list is complete, while another's is not: they rest, so
    /// that no change has to be kept until the cache takes changes.
    listed: Vec<Watch<K>>,
    /// Every namespace was listed once.
    complete: bool,
    /// Watches whose list is complete: what the cache has beyond it is gone.
    stale: Vec<usize>,
    next: VecDeque<Event<K>>,
    cache: Cache<K>,
}

impl<K: Managed> Merged<K> {
    async fn next(&mut self) -> Option<Event<K>> {
        loop {
            if let Some(event) = self.next.pop_front() {
                return Some(event);
            }
            // Not before here: the cache has what was handed out before.
            while let Some(number) = self.stale.pop() {
                self.forget(number);
            }
            if let Some(event) = self.next.pop_front() {
                return Some(event);
            }
            let (Some((number, event)), watch) = self.watches.next().await? else { continue };
            if !self.complete && matches!(event, Event::InitDone) {
                self.listed.push(watch);
            } else {
                self.watches.push(watch.into_future());
            }
            self.take(number, event);
        }
    }

    fn take(&mut self, number: usize, event: Event<K>) {
        match event {
            // Of one namespace; the cache would forget the others'.
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
            Event::InitDone if self.watches.is_empty() => {
                self.complete = true;
                self.watches.extend(self.listed.drain(..).map(StreamExt::into_future));
                // A list that was begun twice may have had more the first time.
                self.stale.extend(0..self.namespaces.len());
                self.next.push_back(Event::InitDone);
            }
            Event::InitDone => {}
            Event::Apply(_) | Event::Delete(_) => self.next.push_back(event),
        }
    }

    /// Deletes from the cache what a complete list of the namespace did not have.
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
    use futures::channel::mpsc;
    use kube::runtime::reflector;

    use super::*;
    use crate::api::Semaphore;

    fn object(namespace: &str, name: &str) -> Semaphore {
        let text = format!("{{metadata: {{name: {name}, namespace: {namespace}}}, spec: {{}}}}");
        serde_yaml::from_str(&text).unwrap()
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

        let listed = |events: &mpsc::UnboundedSender<_>, namespace, names: &[&str]| {
            events.unbounded_send(Event::Init).unwrap();
            for name in names {
                events.unbounded_send(Event::InitApply(object(namespace, name))).unwrap();
            }
            events.unbounded_send(Event::InitDone).unwrap();
        };
        listed(&a, "a", &["a1", "a2"]);
        a.unbounded_send(Event::Apply(object("a", "a3"))).unwrap();
        handled(3).await;
        assert!(names().is_empty(), "b was not listed yet: {:?}", names());
        // The list is begun twice, and b2 was deleted between the two.
        b.unbounded_send(Event::Init).unwrap();
        b.unbounded_send(Event::InitApply(object("b", "b2"))).unwrap();
        listed(&b, "b", &["b1"]);
        handled(5).await;
        assert_eq!(names(), ["a1", "a2", "a3", "b1"]);

        // The watch of a broke: meanwhile a1 was deleted and a4 created.
        listed(&a, "a", &["a2", "a3", "a4"]);
        handled(4).await;
        assert_eq!(names(), ["a2", "a3", "a4", "b1"]);
        b.unbounded_send(Event::Delete(object("b", "b1"))).unwrap();
        handled(1).await;
        assert_eq!(names(), ["a2", "a3", "a4"]);
    }
}
