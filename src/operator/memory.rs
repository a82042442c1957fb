//! What the operator remembers of an object between two reconciles: all of it
//! can be lost without harm, since everything that must survive is in the
//! object's status or on the server.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::{Resource, ResourceExt};

/// What is remembered of one object with status `S`; `D` is the kind's own part.
pub struct Memory<S, D> {
    /// What the last reconcile acted on, and until when there is nothing to do.
    quiet: Option<(Version, Instant)>,
    /// Failures in a row, for growing pauses.
    pub failures: u32,
    /// Failures to clean up, since the object was deleted.
    pub cleanups_failed: u32,
    /// The last status written by this process.
    written: Option<Written<S>>,
    /// The outcome that was last told by an event: Ready's status and reason.
    pub told: Option<(bool, String)>,
    /// What only this kind remembers.
    pub detail: D,
}

#[derive(PartialEq, Eq)]
struct Version {
    generation: Option<i64>,
    annotations: u64,
}

struct Written<S> {
    /// The resourceVersion of the object that the status was computed from.
    over: Option<String>,
    /// The object's resourceVersion since.
    version: Option<String>,
    status: S,
    at: Instant,
}

impl<S: Clone, D: Default> Memory<S, D> {
    fn new() -> Self {
        Self {
            quiet: None,
            failures: 0,
            cleanups_failed: 0,
            written: None,
            told: None,
            detail: D::default(),
        }
    }

    /// How long nothing needs to be done about this object, if it is as the last
    /// reconcile saw it: our own status writes come back as watch events, and
    /// must not cause another look at the server.
    pub fn quiet_for<K: Resource>(&self, object: &K) -> Option<Duration> {
        let (version, until) = self.quiet.as_ref()?;
        let left = until.checked_duration_since(Instant::now())?;
        (*version == Version::of(object)).then_some(left)
    }

    /// Notes that nothing needs to be done for this long unless the object changes.
    pub fn be_quiet<K: Resource>(&mut self, object: &K, pause: Duration) {
        self.quiet = Some((Version::of(object), Instant::now() + pause));
    }

    /// Whether the object's spec is another one than at the last reconcile, or
    /// there was none.
    pub fn is_new_generation<K: Resource>(&self, object: &K) -> bool {
        self.quiet.as_ref().is_none_or(|(v, _)| v.generation != object.meta().generation)
    }

    /// The newest status known: the one in `object`, unless that is as old as the
    /// one that our last write was computed from (hazard K13: a stale cache).
    pub fn newest_status<K: Resource>(&self, object: &K, in_object: Option<&S>) -> Option<S> {
        match &self.written {
            Some(written) if written.over == object.resource_version() => {
                Some(written.status.clone())
            }
            _ => in_object.cloned(),
        }
    }

    /// The resourceVersion that [`Memory::newest_status`] is of.
    pub fn newest_version<K: Resource>(&self, object: &K) -> Option<String> {
        match &self.written {
            Some(written) if written.over == object.resource_version() => written.version.clone(),
            _ => object.resource_version(),
        }
    }

    /// Notes a status that was computed from `over`, and the object's
    /// resourceVersion with it.
    pub fn wrote<K: Resource>(&mut self, over: &K, version: Option<String>, status: S) {
        let over = over.resource_version();
        self.written = Some(Written { over, version, status, at: Instant::now() });
    }

    /// How long ago this process wrote a status.
    pub fn since_write(&self) -> Option<Duration> {
        self.written.as_ref().map(|written| written.at.elapsed())
    }
}

impl Version {
    fn of<K: Resource>(object: &K) -> Self {
        let mut hasher = DefaultHasher::new();
        object.annotations().hash(&mut hasher);
        Self { generation: object.meta().generation, annotations: hasher.finish() }
    }
}

/// The memories of all objects of a kind, by uid: an object recreated under the
/// same name starts afresh (hazard K14).
pub struct Memories<S, D>(Mutex<HashMap<String, Shared<S, D>>>);

type Shared<S, D> = Arc<tokio::sync::Mutex<Memory<S, D>>>;

impl<S, D> Default for Memories<S, D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Clone, D: Default> Memories<S, D> {
    /// The memory of an object. Only one reconcile of an object runs at a time,
    /// so its lock is never waited for.
    pub fn of<K: Resource>(&self, object: &K) -> Arc<tokio::sync::Mutex<Memory<S, D>>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = object.uid().unwrap_or_default();
        all.entry(uid).or_insert_with(|| Arc::new(tokio::sync::Mutex::new(Memory::new()))).clone()
    }

    /// Forgets an object that is gone.
    pub fn forget<K: Resource>(&self, object: &K) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&object.uid().unwrap_or_default());
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
        let mut memory = Memory::<&str, ()>::new();
        memory.wrote(&object("5", 1), Some("6".to_owned()), "ours");
        assert_eq!(memory.newest_status(&object("5", 1), Some(&"stale")), Some("ours"));
        assert_eq!(memory.newest_version(&object("5", 1)).as_deref(), Some("6"));
        assert_eq!(memory.newest_status(&object("7", 1), Some(&"theirs")), Some("theirs"));
        assert_eq!(memory.newest_version(&object("7", 1)).as_deref(), Some("7"));
    }

    #[test]
    fn an_object_is_quiet_until_it_changes_or_time_is_up() {
        let mut memory = Memory::<&str, ()>::new();
        assert!(memory.quiet_for(&object("1", 1)).is_none());
        memory.be_quiet(&object("1", 1), Duration::from_secs(60));
        assert!(memory.quiet_for(&object("2", 1)).is_some(), "a status write is no change");
        assert!(memory.quiet_for(&object("3", 2)).is_none(), "a new generation is one");
        let mut annotated = object("4", 1);
        annotated.metadata.annotations = Some([("a".into(), "b".into())].into());
        assert!(memory.quiet_for(&annotated).is_none(), "an annotation is one");
        memory.be_quiet(&object("1", 1), Duration::ZERO);
        assert!(memory.quiet_for(&object("1", 1)).is_none());
    }
}
