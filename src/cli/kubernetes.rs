//! Resolves the name of a resource on the command line: its context and namespace, and
//! the Secret that it refers to. See the commands for how the resource is used.

use std::error::Error;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use lockkeeper_plan::connection::{BrokerReference, RabbitmqSettings, SecretData};
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::within::within;
use crate::operator::api_error::{explain, is_forbidden};
use crate::operator::fetch::{FetchError, Reader};
use crate::operator::kubeconfig;

/// Maximum time for an answer of the API server, of a command without a limit of its own.
const PATIENCE: Duration = Duration::from_secs(10);

/// Location of a resource in Kubernetes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Kubernetes {
    /// Namespace of the resource [default: that of the context]
    #[arg(long, short)]
    namespace: Option<String>,

    /// Kubernetes context to use [default: the current context]
    #[arg(long)]
    context: Option<String>,

    /// Path of the kubeconfig file [default: that of KUBECONFIG, otherwise
    /// ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// The API server, and the default namespace.
#[derive(Clone)]
pub(super) struct Cluster {
    pub client: Client,
    pub namespace: String,
}

/// A resource, with the client to read related objects.
pub(super) struct FoundObject<K> {
    pub object: K,
    client: Client,
    namespace: String,
}

impl Kubernetes {
    /// Rejects options that have no effect without a resource. `form` shows how to
    /// specify one.
    pub fn must_be_absent(&self, form: &str) -> Result<(), Failure> {
        if self.namespace.is_some() || self.context.is_some() || self.kubeconfig.is_some() {
            let message = format!("--namespace, --context and --kubeconfig are for {form}");
            return Err(Failure::new(Failure::USAGE, message));
        }
        Ok(())
    }

    /// Returns the options that were given, each with its value.
    pub fn arguments(&self) -> impl Iterator<Item = (&'static str, String)> {
        let file = self.kubeconfig.as_ref().map(|file| file.display().to_string());
        let all = [
            ("--namespace", self.namespace.clone()),
            ("--context", self.context.clone()),
            ("--kubeconfig", file),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }

    /// Sets the option of this name to a value, if it is one of these.
    pub fn set(&mut self, option: &str, value: impl FnOnce() -> Option<String>) {
        match option {
            "-n" | "--namespace" => self.namespace = value(),
            "--context" => self.context = value(),
            "--kubeconfig" => self.kubeconfig = value().map(PathBuf::from),
            _ => {}
        }
    }

    /// Determines the API server and the credentials. Does not connect.
    pub async fn connect(&self) -> Result<Cluster, Failure> {
        let config = kubeconfig::find(self.kubeconfig.as_deref(), self.context.as_deref()).await;
        let config = config.map_err(|error| failed(&error))?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| failed(&error))?;
        Ok(Cluster { client, namespace })
    }

    /// Reads the resource with this name.
    pub async fn find<K>(&self, name: &str) -> Result<FoundObject<K>, Failure>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let Cluster { client, namespace } = self.connect().await?;
        let api: Api<K> = Api::namespaced(client.clone(), &namespace);
        let object = api.get_opt(name).await.map_err(|error| failed(&error))?;
        let object = object.ok_or_else(|| not_found::<K>(name, &namespace))?;
        Ok(FoundObject { object, client, namespace })
    }
}

impl<K> FoundObject<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    /// Returns the API that the resource was read from.
    pub fn api(&self) -> Api<K> {
        self.beside()
    }

    /// Returns the API for another kind in the resource's namespace.
    pub fn beside<O>(&self) -> Api<O>
    where
        O: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

impl Cluster {
    /// Returns the API for a kind, in all namespaces or in the selected one.
    pub fn api<K>(&self, all_namespaces: bool) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let client = self.client.clone();
        if all_namespaces { Api::all(client) } else { Api::namespaced(client, &self.namespace) }
    }
}

impl<K> FoundObject<K> {
    /// Wraps an object that was already read.
    pub fn of(object: K, client: Client, namespace: String) -> Self {
        Self { object, client, namespace }
    }

    /// Reads the data of a Secret in the resource's namespace.
    pub async fn secret(&self, name: &str) -> Result<SecretData, Failure> {
        let reader = Reader::new(self.client.clone());
        reader.secret(&self.namespace, name).await.map_err(|error| unfetched(&error))
    }

    /// Resolves the broker reference of the resource as the operator does.
    pub async fn broker(
        &self,
        reference: &BrokerReference,
        vhost: Option<&str>,
    ) -> Result<RabbitmqSettings, Failure> {
        let reader = Reader::new(self.client.clone());
        reader.broker(&self.namespace, reference, vhost).await.map_err(|error| unfetched(&error))
    }
}

fn unfetched(error: &FetchError) -> Failure {
    let code = match error {
        FetchError::Unreadable { source, .. } | FetchError::ClusterUnreadable { source, .. }
            if is_forbidden(&**source) =>
        {
            Failure::NOT_PERMITTED
        }
        FetchError::NotAllowed { .. } => Failure::NOT_PERMITTED,
        FetchError::Settings { .. } => Failure::USAGE,
        _ => Failure::UNAVAILABLE,
    };
    Failure::new(code, error.to_string())
}

/// Returns the failure for an object that does not exist.
pub(super) fn not_found<K: Resource<DynamicType = ()>>(name: &str, namespace: &str) -> Failure {
    let kind = K::kind(&());
    let message = format!("there is no {kind} {name:?} in the namespace {namespace:?}");
    Failure::new(Failure::USAGE, message)
}

/// Waits for an answer of the API server, at most [`PATIENCE`]. Cancel safe if `asking` is.
pub(super) async fn answered<T>(
    asking: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    let asking = async { asking.await.map_err(|error| failed(&error)) };
    within(Some(PATIENCE), "the API server", asking).await
}

/// Returns the failure for an error of the Kubernetes API.
pub(super) fn failed(error: &(dyn Error + 'static)) -> Failure {
    let code = if is_forbidden(error) { Failure::NOT_PERMITTED } else { Failure::UNAVAILABLE };
    Failure::new(code, explain(error))
}
