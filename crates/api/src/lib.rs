//! The resource types of group `lockkeeper.dev`: their fields, validation rules and print
//! columns, and the translation of a spec into the values of [`plan`](lockkeeper_plan). Pure:
//! no I/O.
//!
//! The doc comments of the types are the text of `kubectl explain`. Write them for
//! authors of YAML.

#![allow(
    clippy::doc_markdown,
    rustdoc::bare_urls,
    rustdoc::invalid_html_tags,
    reason = "the text of kubectl explain is no Markdown"
)]

pub mod conditions;
pub mod pressure_queue;
pub mod revoke;
pub mod semaphore;
pub mod validate;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

pub use pressure_queue::{PressureQueue, PressureQueueSpec, PressureQueueStatus};
pub use semaphore::{Semaphore, SemaphoreSpec, SemaphoreStatus};

/// The API group of every kind.
pub const GROUP: &str = "lockkeeper.dev";

/// Name of the operator in server-side apply and in events.
pub const FIELD_MANAGER: &str = "lockkeeper";

/// Finalizer on every resource. The operator removes it when nothing of the resource is
/// left on its server, or when cleanup is no longer possible.
pub const FINALIZER: &str = "lockkeeper.dev/cleanup";

/// Annotation that removes the finalizer without a cleanup on the server if set to
/// `"true"`.
pub const FORCE_FINALIZE: &str = "lockkeeper.dev/force-finalize";

/// Annotation with a request to revoke a holder's slot, as JSON.
pub const REVOKE: &str = "lockkeeper.dev/revoke";

/// Returns both custom resource definitions, as installed in a cluster.
#[must_use]
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    let mut all = vec![Semaphore::crd(), PressureQueue::crd()];
    let versions = all.iter_mut().flat_map(|crd| &mut crd.spec.versions);
    for schema in versions.filter_map(|version| version.schema.as_mut()) {
        schema.open_api_v3_schema.as_mut().into_iter().for_each(join_lines);
    }
    all
}

/// Joins each description into one line. `kubectl explain` wraps lines itself and would
/// keep the line breaks of the source in addition.
fn join_lines(schema: &mut JSONSchemaProps) {
    if let Some(description) = &mut schema.description {
        *description = description.replace('\n', " ");
    }
    schema.properties.iter_mut().flat_map(|all| all.values_mut()).for_each(join_lines);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        join_lines(items);
    }
}

/// Reference to a Secret.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Name of the Secret, in the namespace of this resource unless the reference has a
    /// namespace of its own. Example: `my-connection`.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What happens on the server when the resource is deleted.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum DeletionPolicy {
    /// Remove the lock or the queue.
    Delete,
    /// Leave the server unchanged.
    Retain,
}
