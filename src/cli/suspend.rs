//! `lockkeeper suspend` and `lockkeeper resume`: set whether the operator may make
//! changes on an object's server.

use kube::api::{Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use lockkeeper_api::{PressureQueue, Semaphore};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::completion;
use super::failure::Failure;
use super::kubernetes::{Cluster, Kubernetes, failed, not_found};
use super::output;
use super::target::resource;

/// Arguments of `lockkeeper suspend` and of `lockkeeper resume`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Objects, each as sem/NAME or pq/NAME
    #[arg(value_name = "OBJECT", required = true, add = completion::all_objects())]
    objects: Vec<String>,

    #[command(flatten)]
    kubernetes: Kubernetes,
}

/// Field manager of this command.
const MANAGER: &str = "kubectl-lockkeeper";

pub(super) async fn run(arguments: Arguments, suspend: bool) -> Result<(), Failure> {
    // Parse all names before the first change.
    let all: Vec<Named> =
        arguments.objects.iter().map(|object| named(object)).collect::<Result<_, _>>()?;
    let cluster = arguments.kubernetes.connect().await?;
    for object in all {
        match object {
            Named::Semaphore(name) => set::<Semaphore>(&cluster, name, suspend).await?,
            Named::Queue(name) => set::<PressureQueue>(&cluster, name, suspend).await?,
        }
    }
    Ok(())
}

/// An object of one of the kinds.
enum Named<'a> {
    Semaphore(&'a str),
    Queue(&'a str),
}

fn named(object: &str) -> Result<Named<'_>, Failure> {
    if let Some(name) = resource::<Semaphore>(object) {
        return Ok(Named::Semaphore(name));
    }
    if let Some(name) = resource::<PressureQueue>(object) {
        return Ok(Named::Queue(name));
    }
    let message = format!("{object:?} names no object: give sem/NAME or pq/NAME");
    Err(Failure::new(Failure::USAGE, message))
}

async fn set<K>(cluster: &Cluster, name: &str, suspend: bool) -> Result<(), Failure>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = cluster.api(false);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
    let before = api.get_metadata_opt(name).await.map_err(|error| failed(&error))?;
    let before = before.ok_or_else(|| not_found::<K>(name, &cluster.namespace))?;
    let after = api.patch(name, &params, &patch).await.map_err(|error| failed(&error))?;
    let done = match (suspend, before.metadata.generation == after.meta().generation) {
        (true, false) => "suspended",
        (false, false) => "resumed",
        (true, true) => "was suspended already",
        (false, true) => "was not suspended",
    };
    let kind = K::kind(&()).to_lowercase();
    output::write(&format!("{kind}.{}/{} {done}\n", K::group(&()), after.name_any()))
}
