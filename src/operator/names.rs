//! Index of objects by the names of their locks and queues, so that no reconcile iterates
//! over all of them. See `conflict` for conflicts between them.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use super::kind::Kind;
use super::state::{Place, place};

/// Objects of one kind, by the names of their locks or queues. Few have the same one, so a list of
/// exactly their number takes the least memory.
#[derive(Default)]
pub struct NameIndex(RwLock<HashMap<String, Vec<(Place, u64)>>>);

impl NameIndex {
    /// Handles a watch event. An object whose deletion was missed stays, so callers must
    /// check that it still exists.
    pub fn see<K: Kind>(&self, event: &Event<K>) {
        let (Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) = event
        else {
            return;
        };
        let place = place(object);
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let alike = all.entry(object.server_name()).or_default();
        if !matches!(event, Event::Delete(_)) {
            if !alike.iter().any(|(other, _)| *other == place) {
                alike.reserve_exact(1);
                alike.push((place, version(object)));
            }
            return;
        }
        alike.retain(|(other, _)| *other != place);
        if alike.is_empty() {
            all.remove(&object.server_name());
        }
    }

    /// Returns the current and possibly former objects with this name, each with the
    /// `resourceVersion` that it was first seen with. Of two objects that this process saw
    /// created, the first one has the lower version.
    pub fn of<K: Kind>(&self, name: &str) -> Vec<(ObjectRef<K>, u64)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let alike = all.get(name).into_iter().flatten();
        alike.map(|((namespace, name), at)| (ObjectRef::new(name).within(namespace), *at)).collect()
    }
}

/// Returns the `resourceVersion` as a number, which it is on all known API servers.
fn version<K: Kind>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|at| at.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use lockkeeper_api::Semaphore;

    use super::*;

    fn semaphore(name: &str, spec: &str) -> Semaphore {
        let text = format!("{{metadata: {{name: {name}, namespace: ns}}, spec: {{{spec}}}}}");
        serde_yaml::from_str(&text).unwrap()
    }

    #[test]
    fn objects_are_found_by_the_name_that_the_server_knows() {
        let names = NameIndex::default();
        let found = |name: &str| names.of::<Semaphore>(name).into_iter().map(|(at, _)| at.name);
        let (a, b) = (semaphore("a", ""), semaphore("b", "lockName: ns.a"));
        names.see(&Event::InitApply(a.clone()));
        names.see(&Event::Apply(b.clone()));
        names.see(&Event::Apply(a.clone()));
        assert!(found("ns.a").eq(["a", "b"]));
        assert_eq!(found("ns.b").count(), 0);
        names.see(&Event::Delete(a));
        assert!(found("ns.a").eq(["b"]));
        names.see(&Event::Delete(b));
        assert_eq!(found("ns.a").count(), 0);
    }
}
