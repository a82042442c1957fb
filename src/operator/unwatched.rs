//! Objects that are no longer watched. Their state is dropped. If only their labels have
//! changed (hazard K28), their finalizer is removed, because no other process would. See
//! `cleanup` for objects that are deleted.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt};
use lockkeeper_api::FINALIZER;
use lockkeeper_plan::ErrorClass;
use tracing::{info, warn};

use super::api_error::explain;
use super::error::pause;
use super::kind::Kind;
use super::kind_context::KindContext;
use super::outcome::EventRecord;
use super::reduced::Reduced;
use super::state::{Place, place};
use super::status_writer::publish;

/// Number of failures after which removing the finalizer is left to the user.
const TRIES: u32 = 10;

/// Retry interval after a conflict, because the object has just been changed.
const AGAIN: Duration = Duration::from_millis(250);

/// Follows the objects of one kind.
pub struct Leaving<K: Kind> {
    kind: Arc<KindContext<K>>,
    /// The label selector of the watch. Without one, label changes remove no object from
    /// it.
    labels: Option<String>,
}

impl<K: Kind> Clone for Leaving<K> {
    fn clone(&self) -> Self {
        Self { kind: Arc::clone(&self.kind), labels: self.labels.clone() }
    }
}

impl<K: Kind> Leaving<K> {
    /// Follows the objects of `kind`, which are watched with these labels.
    pub fn new(kind: Arc<KindContext<K>>, labels: Option<String>) -> Self {
        Self { kind, labels }
    }

    /// Handles an event that the cache has already applied.
    pub fn see(&self, event: &Event<K>) {
        match event {
            Event::Delete(object) => {
                let uid = object.uid().unwrap_or_default();
                // An object that was deleted through `cleanup` has neither.
                let is_unfinished = object.meta().deletion_timestamp.is_none();
                if self.kind.states.forget(&uid) || is_unfinished {
                    self.left(place(object));
                }
                self.kind.shared.connections.close_unused();
            }
            Event::InitDone => {
                let there = self.kind.cache.state();
                let there: HashSet<String> =
                    there.iter().filter_map(|object| object.uid()).collect();
                for place in self.kind.states.forget_others(&there) {
                    self.left(place);
                }
                self.kind.shared.connections.close_unused();
            }
            Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
        }
    }

    fn left(&self, place: Place) {
        if self.labels.is_some() {
            let this = self.clone();
            tokio::spawn(async move { this.release(&place).await });
        }
    }

    /// Removes the finalizer, unless the object is gone or is watched again.
    async fn release(&self, place: &Place) {
        let (namespace, name) = place;
        for failures in 1..=TRIES {
            if !self.kind.shared.goes_on() {
                return;
            }
            let pause = match self.try_release(place).await {
                Ok(()) => return,
                Err(kube::Error::Api(answer)) if answer.is_not_found() => return,
                Err(kube::Error::Api(answer)) if answer.is_conflict() => AGAIN,
                Err(error) => {
                    let kind = K::kind(&());
                    warn!(error = explain(&error), %kind, namespace, name, "cannot remove the finalizer of an object that is no longer watched");
                    pause(ErrorClass::Transient, failures)
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn try_release(&self, (namespace, name): &Place) -> kube::Result<()> {
        let api: Api<Reduced<K>> = Api::namespaced(self.kind.shared.client.clone(), namespace);
        // Uses a list request, because the operator has no permission to `get`.
        let mut this = ListParams::default().fields(&format!("metadata.name={name}"));
        // An unreadable object may still match the selector, so it is left unchanged.
        let Some(Reduced(Ok(object))) = api.list(&this).await?.items.pop() else {
            return Ok(());
        };
        let mut finalizers = object.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        if finalizers.len() == object.finalizers().len() {
            return Ok(());
        }
        this.label_selector.clone_from(&self.labels);
        let is_watched = !api.list(&this).await?.items.is_empty();
        if is_watched || self.kind.cache.get(&ObjectRef::new(name).within(namespace)).is_some() {
            return Ok(());
        }
        let patch = Patch::Merge(serde_json::json!({"metadata": {
            "uid": object.uid(),
            "resourceVersion": object.resource_version(),
            "finalizers": finalizers,
        }}));
        api.patch(name, &PatchParams::default(), &patch).await?;
        info!(namespace, name, kind = %K::kind(&()), "no longer watched: its finalizer is removed");
        let message = "Its labels do not match the operator's label selector any more. Its finalizer is removed, and the server is left as it is";
        publish(&self.kind.shared, &object, &EventRecord::new(false, "NoLongerWatched", message))
            .await;
        Ok(())
    }
}
