//! Namespace quotas, evaluated against the watch cache: without requests, and without
//! sorting all objects of a namespace in a reconcile. See
//! [`plan::quota`](lockkeeper_plan::quota) for their meaning.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::{PoisonError, RwLock};

use kube::ResourceExt;
use kube::runtime::reflector::Store as Cache;
use kube::runtime::watcher::Event;
use lockkeeper_plan::quota::{Demand, Limits, OverLimit, fits};

use super::kind::{Age, Kind, age};

/// Demands of the watched objects of one kind on the quotas, by namespace, the oldest
/// object first. Empty without quotas.
pub struct QuotaTracker<K> {
    limits: Limits,
    all: RwLock<ByNamespace>,
    _kind: PhantomData<fn(&K)>,
}

type ByNamespace = HashMap<String, BTreeMap<Age, Demand>>;

impl<K: Kind> QuotaTracker<K> {
    /// Creates the demands of a kind without objects.
    pub fn new(limits: Limits) -> Self {
        Self { limits, all: RwLock::default(), _kind: PhantomData }
    }

    fn is_limited(&self) -> bool {
        self.limits.slots.is_some() || self.limits.objects.is_some()
    }

    /// Handles an event that `cache` has already applied.
    pub fn see(&self, event: &Event<K>, cache: &Cache<K>) {
        if !self.is_limited() {
            return;
        }
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(object) => add(&mut all, object),
            Event::Delete(object) => {
                let namespace = object.namespace().unwrap_or_default();
                if let Some(demands) = all.get_mut(&namespace) {
                    demands.remove(&age(object));
                    if demands.is_empty() {
                        all.remove(&namespace);
                    }
                }
            }
            // The list has replaced the cache's contents.
            Event::InitDone => {
                all.clear();
                cache.state().iter().for_each(|object| add(&mut all, &**object));
            }
            Event::Init | Event::InitApply(_) => {}
        }
    }

    /// Checks that an object is within the quota, after the older objects of its
    /// namespace.
    pub fn check(&self, object: &K) -> Result<(), OverLimit> {
        if !self.is_limited() {
            return Ok(());
        }
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let beside = all.get(&object.namespace().unwrap_or_default());
        let ((created, uid), own) = (age(object), object.demand());
        let is_older = |((other, its_uid), demand): &(&Age, &Demand)| {
            *other < created || (!demand.stands, its_uid) < (!own.stands, &uid)
        };
        let not_younger = beside.into_iter().flatten().take_while(|((at, _), _)| *at <= created);
        let older: Vec<Demand> = not_younger.filter(is_older).map(|(_, demand)| *demand).collect();
        fits(self.limits, &older, own)
    }
}

fn add<K: Kind>(all: &mut ByNamespace, object: &K) {
    let namespace = object.namespace().unwrap_or_default();
    all.entry(namespace).or_default().insert(age(object), object.demand());
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector;
    use lockkeeper_api::Semaphore;

    use super::*;

    fn semaphore(name: &str, second: u32, slots: i32) -> Semaphore {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
            "metadata": {
                "name": name, "namespace": "ci", "uid": name,
                "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            },
            "spec": {"slots": slots},
        }))
        .unwrap()
    }

    #[test]
    fn objects_count_by_age_as_they_come_change_and_go() {
        let (cache, mut writer) = reflector::store::<Semaphore>();
        let demands = QuotaTracker::<Semaphore>::new(Limits { slots: Some(5), objects: None });
        let mut see = |event: Event<Semaphore>| {
            writer.apply_watcher_event(&event);
            demands.see(&event, &cache);
        };
        let fits = |object: &Semaphore| demands.check(object).is_ok();
        let (old, young) = (semaphore("z", 1, 3), semaphore("a", 2, 3));
        see(Event::Init);
        see(Event::InitApply(young.clone()));
        see(Event::InitApply(old.clone()));
        see(Event::InitDone);
        assert!(fits(&old) && !fits(&young));
        see(Event::Apply(semaphore("z", 1, 2)));
        assert!(fits(&young), "the older one was made smaller");
        see(Event::Apply(old.clone()));
        assert!(!fits(&young));
        let elsewhere = {
            let mut object = young.clone();
            object.metadata.namespace = Some("other".to_owned());
            object
        };
        assert!(fits(&elsewhere));
        see(Event::Delete(old.clone()));
        assert!(fits(&young));
        // Of the same second, the one that has slots keeps them.
        let mut has_slots = semaphore("y", 2, 3);
        let status = serde_json::json!({"reachedBackend": "b:5672/", "highestSlot": 3});
        has_slots.status = Some(serde_json::from_value(status).unwrap());
        see(Event::Apply(has_slots.clone()));
        assert!(fits(&has_slots) && !fits(&young));
        see(Event::Delete(has_slots));
        // An object that is deleted while the watch is down no longer counts after the
        // next list.
        see(Event::Apply(old));
        see(Event::Init);
        see(Event::InitApply(young.clone()));
        see(Event::InitDone);
        assert!(fits(&young));
    }
}
