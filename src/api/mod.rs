//! What users write: the resource types of group `lockkeeper.dev`, their
//! validation rules and print columns, and the translation of a raw spec into
//! the values of [`plan`](crate::plan). Pure: nothing here talks to a server.
//!
//! The doc comments of the types are the text of `kubectl explain`, so they
//! are written for whoever writes YAML.

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

/// Who the operator is in server-side apply and in events.
pub const FIELD_MANAGER: &str = "lockkeeper";

/// The finalizer on every resource: it goes when nothing of the resource is
/// left on its server, or nothing can be done about it any more.
pub const FINALIZER: &str = "lockkeeper.dev/cleanup";

/// `"true"` lets a resource go without touching its server.
pub const FORCE_FINALIZE: &str = "lockkeeper.dev/force-finalize";

/// A request to take a slot from its holder, as JSON.
pub const REVOKE: &str = "lockkeeper.dev/revoke";

/// Both resource definitions, as installed in a cluster.
#[must_use]
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    let mut all = vec![Semaphore::crd(), PressureQueue::crd()];
    let versions = all.iter_mut().flat_map(|crd| &mut crd.spec.versions);
    for schema in versions.filter_map(|version| version.schema.as_mut()) {
        schema.open_api_v3_schema.as_mut().into_iter().for_each(join_lines);
    }
    all
}

/// Makes one line of each description: `kubectl explain` breaks lines itself, and
/// would keep those of the source beside its own.
fn join_lines(schema: &mut JSONSchemaProps) {
    if let Some(description) = &mut schema.description {
        *description = description.replace('\n', " ");
    }
    schema.properties.iter_mut().flat_map(|all| all.values_mut()).for_each(join_lines);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        join_lines(items);
    }
}

/// A Secret.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Name of the Secret, in the namespace of this resource unless another one is named beside
    /// it. Example: rabbit-default-user.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What happens on the server when the resource is deleted.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, schemars::JsonSchema)]
pub enum DeletionPolicy {
    /// Remove what the resource stands for.
    Delete,
    /// Leave the server as it is.
    Retain,
}
