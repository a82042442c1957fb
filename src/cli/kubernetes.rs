//! From the name of a resource on the command line to the resource: which
//! context and namespace, and the Secret that it names. What the resource means
//! is for the verbs.

use std::fmt::{Debug, Display};
use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use super::Failure;
use crate::operator::fetch::{FetchError, Reader};
use crate::plan::connection::{BrokerReference, RabbitmqSettings, SecretData};

/// Where in Kubernetes a named resource is.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Kubernetes {
    /// The namespace of a resource [default: the context's]
    #[arg(long, short)]
    namespace: Option<String>,

    /// The Kubernetes context of a resource [default: the current one]
    #[arg(long)]
    context: Option<String>,

    /// The file that says where Kubernetes is [default: that of KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// The API server, and the namespace that is meant where none is named.
#[derive(Clone)]
pub(super) struct Cluster {
    pub client: Client,
    pub namespace: String,
}

/// A resource, and what is needed to read more.
pub(super) struct FoundObject<K> {
    pub object: K,
    client: Client,
    namespace: String,
}

impl Kubernetes {
    /// Refuses what means nothing where no resource is named; `form` is how one
    /// would be.
    pub fn must_be_absent(&self, form: &str) -> Result<(), Failure> {
        if self.namespace.is_some() || self.context.is_some() || self.kubeconfig.is_some() {
            let message = format!("--namespace, --context and --kubeconfig are for {form}");
            return Err(Failure::new(Failure::USAGE, message));
        }
        Ok(())
    }

    /// Where Kubernetes is, and as whom. Connects nothing.
    pub async fn connect(&self) -> Result<Cluster, Failure> {
        let options =
            KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match (&self.kubeconfig, &self.context) {
            (Some(file), _) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(|error| failed(&error))?;
                let read = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                read.map_err(|error| failed(&error))?
            }
            (None, Some(_)) => {
                Config::from_kubeconfig(&options).await.map_err(|error| failed(&error))?
            }
            (None, None) => Config::infer().await.map_err(|error| failed(&error))?,
        };
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| failed(&error))?;
        Ok(Cluster { client, namespace })
    }

    /// Reads the resource of this name.
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
    /// The API that it was read from.
    pub fn api(&self) -> Api<K> {
        self.beside()
    }

    /// The API for another kind in its namespace.
    pub fn beside<O>(&self) -> Api<O>
    where
        O: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

impl Cluster {
    /// A kind in all namespaces, or in the one that is meant.
    pub fn api<K>(&self, all_namespaces: bool) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let client = self.client.clone();
        if all_namespaces { Api::all(client) } else { Api::namespaced(client, &self.namespace) }
    }
}

impl<K> FoundObject<K> {
    /// An object that was read already.
    pub fn of(object: K, client: Client, namespace: String) -> Self {
        Self { object, client, namespace }
    }

    /// The data of a Secret beside it.
    pub async fn secret(&self, name: &str) -> Result<SecretData, Failure> {
        let reader = Reader::new(self.client.clone());
        reader.secret(&self.namespace, name).await.map_err(|error| unfetched(&error))
    }

    /// The broker that it names, as the operator finds it.
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
            if matches!(&**source, kube::Error::Api(answer) if answer.code == 403) =>
        {
            Failure::NOT_PERMITTED
        }
        FetchError::NotAllowed { .. } => Failure::NOT_PERMITTED,
        FetchError::Settings { .. } => Failure::USAGE,
        _ => Failure::UNAVAILABLE,
    };
    Failure::new(code, error.to_string())
}

/// That there is no such object.
pub(super) fn not_found<K: Resource<DynamicType = ()>>(name: &str, namespace: &str) -> Failure {
    let kind = K::kind(&());
    let message = format!("there is no {kind} {name:?} in the namespace {namespace:?}");
    Failure::new(Failure::USAGE, message)
}

/// What went wrong while Kubernetes was asked.
pub(super) fn failed(error: &dyn Display) -> Failure {
    Failure::new(Failure::UNAVAILABLE, format!("Kubernetes can't be asked: {error}"))
}
