//! The kinds of this project, and what their conditions say about the newest spec.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use lockkeeper_api::{PressureQueue, Semaphore};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind of this project.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// Returns status, reason and message of a condition, if it is about the newest spec.
    fn condition(&self, type_: &str) -> Option<(String, String, String)>;
}

macro_rules! kind {
    ($kind:ty) => {
        impl Kind for $kind {
            fn condition(&self, type_: &str) -> Option<(String, String, String)> {
                let conditions = &self.status.as_ref()?.conditions;
                let c = conditions.iter().find(|c| c.type_ == type_)?;
                (c.observed_generation == self.metadata.generation)
                    .then(|| (c.status.clone(), c.reason.clone(), c.message.clone()))
            }
        }
    };
}
kind!(Semaphore);
kind!(PressureQueue);

/// Returns whether a condition about the newest spec has this status.
pub fn has<K: Kind>(object: &K, type_: &str, status: &str) -> bool {
    object.condition(type_).is_some_and(|(is, ..)| is == status)
}

/// Returns whether a condition about the newest spec has this reason.
pub fn has_reason<K: Kind>(object: &K, type_: &str, reason: &str) -> bool {
    object.condition(type_).is_some_and(|(_, is, _)| is == reason)
}

/// Returns whether Ready is true for the newest spec.
pub fn is_ready<K: Kind>(object: &K) -> bool {
    has(object, "Ready", "True")
}
