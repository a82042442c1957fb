//! The kinds of objects that a manifest can have, as the verbs for manifests need them. One
//! file for each kind. The decisions are those of the operator: see [`lockkeeper_plan`].

mod pressure_queue;
mod semaphore;

use std::fmt::Debug;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::{Resource, ResourceExt};
use lockkeeper_api::validate::SpecError;
use lockkeeper_api::{PressureQueue, Semaphore};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::failure::Failure;
use super::plan::{Action, Resolver, Shown};

/// A kind of object.
trait Kind: Resource<DynamicType = ()> + Debug + DeserializeOwned + Send + Sync + 'static {
    /// kubectl's short name.
    const SHORT: &'static str;

    /// The spec, validated.
    type Valid: Send;

    /// Validates the spec as the operator does.
    fn validate(&self) -> Result<Self::Valid, SpecError>;

    /// Observes the object on its server, and plans its change. Changes nothing.
    fn plan(
        &self,
        valid: Self::Valid,
        resolver: &Resolver,
    ) -> impl Future<Output = Result<Step, Failure>> + Send;

    /// Describes the object without a change.
    fn shown(&self, server: String, target: String) -> Shown {
        Shown {
            kind: Self::kind(&()),
            short: Self::SHORT,
            namespace: self.namespace().unwrap_or_default(),
            name: self.name_any(),
            server,
            target,
            action: Action::Suspended,
            changes: Vec::new(),
            draining: 0,
            notes: Vec::new(),
        }
    }
}

/// The change of one object.
pub(super) struct Step {
    pub shown: Shown,
    /// Applies the change when it is awaited. `None` if nothing is to be changed.
    pub work: Option<BoxFuture<'static, Result<(), Failure>>>,
}

/// An object of any kind, with defaults applied.
pub(super) trait Object: Debug + Send + Sync {
    /// Returns the name with kubectl's short name of the kind.
    fn called(&self) -> String;

    /// Sets the namespace if the object has none.
    fn set_default_namespace(&mut self, namespace: &str);

    /// Returns the reason why the operator would reject the object although the API
    /// server accepts it. This concerns names, which may derive from the object's name
    /// and namespace.
    fn refusal(&self) -> Option<SpecError>;

    /// Observes the object on its server, and plans its change. Changes nothing.
    fn step<'a>(&'a self, resolver: &'a Resolver) -> BoxFuture<'a, Result<Step, Failure>>;
}

impl<K: Kind> Object for K {
    fn called(&self) -> String {
        format!("{}/{}", K::SHORT, self.name_any())
    }

    fn set_default_namespace(&mut self, namespace: &str) {
        self.meta_mut().namespace.get_or_insert_with(|| namespace.to_owned());
    }

    fn refusal(&self) -> Option<SpecError> {
        self.validate().err()
    }

    fn step<'a>(&'a self, resolver: &'a Resolver) -> BoxFuture<'a, Result<Step, Failure>> {
        async move {
            let valid = self.validate();
            let valid = valid.map_err(|error| Failure::new(Failure::INVALID, error.to_string()))?;
            self.plan(valid, resolver).await
        }
        .boxed()
    }
}

/// Reads an object of one kind.
pub(super) type Reader = fn(Value) -> serde_json::Result<Box<dyn Object>>;

/// All kinds, by name.
pub(super) const KINDS: [(&str, Reader); 2] =
    [("Semaphore", read::<Semaphore>), ("PressureQueue", read::<PressureQueue>)];

fn read<K: Kind>(value: Value) -> serde_json::Result<Box<dyn Object>> {
    serde_json::from_value::<K>(value).map(|object| Box::new(object) as Box<dyn Object>)
}
