//! Reads watched objects one by one, so that an object that this version of the
//! operator cannot read (written by a newer one, for example) affects no other.
//! See `watches` for where the events come from.

use std::collections::BTreeSet;

use kube::core::error_boundary::InvalidObject;
use kube::runtime::reflector::{ObjectRef, Store as Cache};
use kube::runtime::watcher::Event;

use super::kind::Kind;
use super::metrics::Metrics;
use super::reduced::Reduced;
use super::state::{Place, place};

/// Converts the events of one watch into events about readable objects.
pub struct Decoder<K: Kind> {
    /// The cache that the events are applied to.
    cache: Cache<K>,
    metrics: Metrics,
    unreadable: BTreeSet<Place>,
    /// The unreadable objects of the list in progress.
    listed: Option<BTreeSet<Place>>,
}

impl<K: Kind> Decoder<K> {
    /// Creates a decoder without known unreadable objects.
    pub fn new(cache: Cache<K>, metrics: Metrics) -> Self {
        Self { cache, metrics, unreadable: BTreeSet::new(), listed: None }
    }

    /// Returns the event to pass on, if any, and the object that cannot be read, if any.
    ///
    /// An object that has become unreadable leaves the cache: acting on its last
    /// readable state would undo what its owner has changed since.
    pub fn read(&mut self, event: Event<Reduced<K>>) -> (Option<Event<K>>, Option<InvalidObject>) {
        match event {
            Event::Init => {
                self.listed = Some(BTreeSet::new());
                (Some(Event::Init), None)
            }
            Event::InitDone => {
                if let Some(listed) = self.listed.take() {
                    let before = std::mem::replace(&mut self.unreadable, listed);
                    let namespaces = before.iter().chain(&self.unreadable).map(|(ns, _)| ns);
                    namespaces.collect::<BTreeSet<_>>().into_iter().for_each(|ns| self.count(ns));
                }
                (Some(Event::InitDone), None)
            }
            Event::InitApply(Reduced(Ok(object))) => {
                (Some(Event::InitApply(self.readable(object))), None)
            }
            Event::Apply(Reduced(Ok(object))) => (Some(Event::Apply(self.readable(object))), None),
            Event::Delete(Reduced(Ok(object))) => {
                (Some(Event::Delete(self.readable(object))), None)
            }
            Event::InitApply(Reduced(Err(object))) => {
                let place = place_of(&object);
                self.unreadable.insert(place.clone());
                self.count(&place.0);
                self.listed.get_or_insert_default().insert(place);
                // The list replaces the cache's contents.
                (None, Some(object))
            }
            Event::Apply(Reduced(Err(object))) => {
                let place = place_of(&object);
                self.unreadable.insert(place.clone());
                self.count(&place.0);
                (self.gone(&place), Some(object))
            }
            Event::Delete(Reduced(Err(object))) => {
                let place = place_of(&object);
                self.unreadable.remove(&place);
                self.count(&place.0);
                (self.gone(&place), None)
            }
        }
    }

    fn readable(&mut self, object: K) -> K {
        let place = place(&object);
        if self.unreadable.remove(&place) {
            self.count(&place.0);
        }
        object
    }

    /// Returns the deletion event for the cached version of an object.
    fn gone(&self, (namespace, name): &Place) -> Option<Event<K>> {
        let known = self.cache.get(&ObjectRef::new(name).within(namespace))?;
        Some(Event::Delete((*known).clone()))
    }

    fn count(&self, namespace: &str) {
        let count = self.unreadable.iter().filter(|(ns, _)| ns == namespace).count();
        self.metrics.unreadable(&K::kind(&()), namespace, count);
    }
}

/// Returns the namespace and name of an unreadable object.
fn place_of(object: &InvalidObject) -> Place {
    let metadata = &object.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use kube::runtime::reflector;
    use lockkeeper_api::Semaphore;

    use super::*;

    fn object(name: &str, protocol: &str) -> Reduced<Semaphore> {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
            "metadata": {"name": name, "namespace": "ci", "uid": name},
            "spec": {"protocol": protocol},
        }))
        .unwrap()
    }

    #[test]
    fn an_unreadable_object_leaves_the_cache_and_no_other_object_is_affected() {
        let (cache, mut writer) = reflector::store::<Semaphore>();
        let metrics = Metrics::new(true);
        let mut decoder = Decoder::new(cache.clone(), metrics.clone());
        let mut see = |event: Event<Reduced<Semaphore>>| {
            let (event, unreadable) = decoder.read(event);
            if let Some(event) = event {
                writer.apply_watcher_event(&event);
            }
            unreadable.map(|object| object.error)
        };
        let names = || {
            let mut names: Vec<_> = cache.state().iter().map(|object| object.name_any()).collect();
            names.sort();
            names
        };
        let counted = |count: Option<u32>| {
            let text = metrics.text().unwrap();
            let start = r#"lockkeeper_unreadable_objects{kind="Semaphore",namespace="ci"} "#;
            let line = text.lines().find_map(|line| line.strip_prefix(start));
            assert_eq!(line, count.map(|count| count.to_string()).as_deref());
        };

        see(Event::Init);
        assert_eq!(see(Event::InitApply(object("a", "Token"))), None);
        let error = see(Event::InitApply(object("b", "Telepathy"))).unwrap();
        assert!(error.contains("Telepathy"), "{error}");
        see(Event::InitApply(object("c", "Token")));
        see(Event::InitDone);
        assert_eq!(names(), ["a", "c"]);
        counted(Some(1));

        see(Event::Apply(object("c", "Telepathy"))).unwrap();
        assert_eq!(names(), ["a"], "its last readable state must not be acted on");
        counted(Some(2));
        see(Event::Apply(object("c", "Token")));
        assert_eq!(names(), ["a", "c"]);
        see(Event::Delete(object("b", "Telepathy")));
        counted(None);

        // Objects that were deleted while the watch was down are no longer counted.
        see(Event::Apply(object("c", "Telepathy"))).unwrap();
        counted(Some(1));
        see(Event::Init);
        see(Event::InitApply(object("a", "Token")));
        see(Event::InitDone);
        counted(None);
    }
}
