//! State of an object between two reconciles. It can be lost without harm, because
//! everything that must persist is in the object's status or on the server.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::{Resource, ResourceExt};

use super::fetch::Kept;

/// State of one object with status `S`. `D` is the part of its kind.
pub struct ObjectState<S, D> {
    /// The object version of the last reconcile, and the time until which nothing is due.
    quiet: Option<(Version, Instant)>,
    /// Consecutive failures, for the backoff.
    pub failures: u32,
    /// Consecutive failures to write to the API server.
    pub unwritten: u32,
    /// Failed cleanups since the object was deleted.
    pub cleanups_failed: u32,
    /// What the deletion waits for, and the number of observations with this result.
    awaited: Option<(String, u32)>,
    /// The last status written by this process, until the cache has it. Of thousands of objects,
    /// few have one: boxed, the others need no space for it.
    written: Option<Box<Written<S>>>,
    /// When this process last wrote a status.
    wrote_at: Option<Instant>,
    /// The outcome of the last event: Ready's status and reason.
    pub told: Option<(bool, String)>,
    /// Keeps the connections of the last reconcile open.
    pub connection: Option<Kept>,
    /// State of this kind only.
    pub detail: D,
}

#[derive(PartialEq, Eq)]
struct Version {
    generation: Option<i64>,
    annotations: u64,
}

struct Written<S> {
    /// The resourceVersions that it replaced: of the object that the status was computed from,
    /// and of this process's writes since. The cache may still have any of them.
    replaced: Vec<Option<String>>,
    /// The object's resourceVersion after the write.
    version: Option<String>,
    status: S,
}

impl<S, D: Default> Default for ObjectState<S, D> {
    fn default() -> Self {
        Self {
            quiet: None,
            failures: 0,
            unwritten: 0,
            cleanups_failed: 0,
            awaited: None,
            written: None,
            wrote_at: None,
            told: None,
            connection: None,
            detail: D::default(),
        }
    }
}

impl<S: Clone, D: Default> ObjectState<S, D> {
    /// Returns how long nothing has to be done about this object, if it is unchanged
    /// since the last reconcile. The operator's own status writes return as watch events
    /// and must not cause another observation.
    pub fn skip_until<K: Resource>(&self, object: &K) -> Option<Duration> {
        let (version, until) = self.quiet.as_ref()?;
        let left = until.checked_duration_since(Instant::now())?;
        (*version == Version::of(object)).then_some(left)
    }

    /// Records that nothing has to be done for this long unless the object changes.
    pub fn schedule_next<K: Resource>(&mut self, object: &K, pause: Duration) {
        self.quiet = Some((Version::of(object), Instant::now() + pause));
    }

    /// Records what the deletion waits for. Returns how many consecutive observations
    /// before this one had the same result.
    pub fn waits_for(&mut self, what: &str) -> u32 {
        let looks = match self.awaited.take() {
            Some((known, looks)) if known == what => looks.saturating_add(1),
            _ => 0,
        };
        self.awaited = Some((what.to_owned(), looks));
        looks
    }

    /// Returns whether the object's spec has changed since the last reconcile, or this is
    /// the first.
    pub fn is_new_generation<K: Resource>(&self, object: &K) -> bool {
        self.quiet.as_ref().is_none_or(|(v, _)| v.generation != object.meta().generation)
    }

    /// Returns the newest known status: the one in `object`, unless this process has replaced
    /// that since (hazard K13: a stale cache).
    pub fn newest_status<K: Resource>(&mut self, object: &K, in_object: Option<&S>) -> Option<S> {
        // A copy for each of thousands of objects would be most of their memory.
        self.written.take_if(|written| !written.replaced.contains(&object.resource_version()));
        match &self.written {
            Some(written) => Some(written.status.clone()),
            None => in_object.cloned(),
        }
    }

    /// Returns the resourceVersion of [`ObjectState::newest_status`].
    pub fn newest_version<K: Resource>(&self, object: &K) -> Option<String> {
        let version = object.resource_version();
        match &self.written {
            Some(written) if written.replaced.contains(&version) => written.version.clone(),
            _ => version,
        }
    }

    /// Records a written status that was computed from `over`, and the object's
    /// resourceVersion with it.
    pub fn wrote<K: Resource>(&mut self, over: &K, version: Option<String>, status: S) {
        let over = over.resource_version();
        // A reconcile may write twice, and the next one may still see what the first replaced.
        let replaced = match self.written.take() {
            Some(last) if last.replaced.contains(&over) => {
                let Written { mut replaced, version, .. } = *last;
                replaced.push(version);
                replaced
            }
            _ => vec![over],
        };
        self.written = Some(Box::new(Written { replaced, version, status }));
        self.wrote_at = Some(Instant::now());
    }

    /// Returns the time since this process wrote a status.
    pub fn since_write(&self) -> Option<Duration> {
        self.wrote_at.map(|at| at.elapsed())
    }
}

impl Version {
    fn of<K: Resource>(object: &K) -> Self {
        let mut hasher = DefaultHasher::new();
        object.annotations().hash(&mut hasher);
        Self { generation: object.meta().generation, annotations: hasher.finish() }
    }
}

/// State of all objects of a kind, by uid. An object recreated under the same name has
/// new state (hazard K14).
pub struct StateStore<S, D>(Mutex<HashMap<String, Entry<S, D>>>);

struct Entry<S, D> {
    place: Place,
    /// Whether the object stands for its lock or queue, once this process has decided.
    stands: Option<bool>,
    memory: Shared<S, D>,
}

type Shared<S, D> = Arc<tokio::sync::Mutex<ObjectState<S, D>>>;

/// Namespace and name.
pub type Place = (String, String);

/// Returns the namespace and name of an object.
pub fn place<K: Resource>(object: &K) -> Place {
    (object.namespace().unwrap_or_default(), object.name_any())
}

impl<S, D> Default for StateStore<S, D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Clone, D: Default> StateStore<S, D> {
    /// Returns the state of an object. Its lock is never contended, because only one
    /// reconcile of an object runs at a time.
    pub fn of<K: Resource>(&self, object: &K) -> Arc<tokio::sync::Mutex<ObjectState<S, D>>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = object.uid().unwrap_or_default();
        let new = || Entry { place: place(object), stands: None, memory: Shared::default() };
        all.entry(uid).or_insert_with(new).memory.clone()
    }
}

impl<S, D> StateStore<S, D> {
    /// Returns whether an object stands for its lock or queue, if this process has decided.
    pub fn stands<K: Resource>(&self, object: &K) -> Option<bool> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(object.meta().uid.as_deref()?)?.stands
    }

    /// Records whether an object stands for its lock or queue.
    pub fn decide<K: Resource>(&self, object: &K, stands: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        if let Some(entry) = all.get_mut(uid) {
            entry.stands = Some(stands);
        }
    }

    /// Drops the state of this uid. Returns whether it existed.
    pub fn forget(&self, uid: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid).is_some()
    }

    /// Drops the state of all other uids. Returns the objects that they belonged to.
    pub fn forget_others(&self, uids: &HashSet<String>) -> Vec<Place> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extract_if(|uid, _| !uids.contains(uid)).map(|(_, entry)| entry.place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn object(version: &str, generation: i64) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.resource_version = Some(version.to_owned());
        object.metadata.generation = Some(generation);
        object
    }

    #[test]
    fn a_written_status_counts_until_the_cache_has_moved_on() {
        let mut memory = ObjectState::<&str, ()>::default();
        memory.wrote(&object("5", 1), Some("6".to_owned()), "ours");
        assert_eq!(memory.newest_status(&object("5", 1), Some(&"stale")), Some("ours"));
        assert_eq!(memory.newest_version(&object("5", 1)).as_deref(), Some("6"));
        assert_eq!(memory.newest_status(&object("7", 1), Some(&"theirs")), Some("theirs"));
        assert_eq!(memory.newest_version(&object("7", 1)).as_deref(), Some("7"));
        // The first of two writes may be what the cache has.
        memory.wrote(&object("7", 1), Some("8".to_owned()), "first");
        memory.wrote(&object("7", 1), Some("9".to_owned()), "second");
        for stale in ["7", "8"] {
            assert_eq!(memory.newest_status(&object(stale, 1), Some(&"stale")), Some("second"));
            assert_eq!(memory.newest_version(&object(stale, 1)).as_deref(), Some("9"));
        }
        memory.wrote(&object("8", 1), Some("10".to_owned()), "third");
        assert_eq!(memory.newest_status(&object("9", 1), Some(&"stale")), Some("third"));
        assert_eq!(memory.newest_status(&object("10", 1), Some(&"ours")), Some("ours"));
    }

    #[test]
    fn memories_of_missing_objects_are_dropped() {
        let states = StateStore::<&str, ()>::default();
        let named = |uid: &str| {
            let mut object = object("1", 1);
            object.metadata.uid = Some(uid.to_owned());
            object.metadata.name = Some(format!("name-{uid}"));
            object.metadata.namespace = Some("ns".to_owned());
            object
        };
        for uid in ["a", "b", "c"] {
            states.of(&named(uid));
        }
        assert!(states.forget("a") && !states.forget("a"));
        let missing = states.forget_others(&HashSet::from(["b".to_owned()]));
        assert_eq!(missing, [("ns".to_owned(), "name-c".to_owned())]);
        assert!(states.forget("b"));
    }

    #[test]
    fn an_object_is_quiet_until_it_changes_or_time_is_up() {
        let mut memory = ObjectState::<&str, ()>::default();
        assert!(memory.skip_until(&object("1", 1)).is_none());
        memory.schedule_next(&object("1", 1), Duration::from_secs(60));
        assert!(memory.skip_until(&object("2", 1)).is_some(), "a status write is no change");
        assert!(memory.skip_until(&object("3", 2)).is_none(), "a new generation is one");
        let mut annotated = object("4", 1);
        annotated.metadata.annotations = Some([("a".into(), "b".into())].into());
        assert!(memory.skip_until(&annotated).is_none(), "an annotation is one");
        memory.schedule_next(&object("1", 1), Duration::ZERO);
        assert!(memory.skip_until(&object("1", 1)).is_none());
    }
}
