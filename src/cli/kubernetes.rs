//! From the name of a resource on the command line to the resource: which
//! context and namespace, and the Secret that it names. What the resource means
//! is for the verbs.

use std::fmt::{Debug, Display};

use kube::config::KubeConfigOptions;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use super::Failure;
use crate::operator::fetch::{FetchError, Reader};
use crate::plan::connection::{BrokerReference, RabbitmqSettings, SecretData};

/// Where in Kubernetes a named resource is.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Kubernetes {
    /// The namespace of a resource [default: the context's]
    #[arg(long, short)]
    namespace: Option<String>,

    /// The Kubernetes context of a resource [default: the current one]
    #[arg(long)]
    context: Option<String>,
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
        if self.namespace.is_some() || self.context.is_some() {
            let message = format!("--namespace and --context are for {form}");
            return Err(Failure::new(Failure::USAGE, message));
        }
        Ok(())
    }

    /// Reads the resource of this name.
    pub async fn find<K>(&self, name: &str) -> Result<FoundObject<K>, Failure>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let config = match &self.context {
            None => Config::infer().await.map_err(|error| failed(&error))?,
            Some(context) => {
                let options =
                    KubeConfigOptions { context: Some(context.clone()), ..Default::default() };
                Config::from_kubeconfig(&options).await.map_err(|error| failed(&error))?
            }
        };
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| failed(&error))?;
        let api: Api<K> = Api::namespaced(client.clone(), &namespace);
        let object = api.get_opt(name).await.map_err(|error| failed(&error))?;
        let object = object.ok_or_else(|| {
            let kind = K::kind(&());
            let message = format!("there is no {kind} {name:?} in the namespace {namespace:?}");
            Failure::new(Failure::USAGE, message)
        })?;
        Ok(FoundObject { object, client, namespace })
    }
}

impl<K> FoundObject<K> {
    /// The data of a Secret beside it.
    pub async fn secret(&self, name: &str) -> Result<SecretData, Failure> {
        let reader = Reader::new(self.client.clone());
        reader.secret(&self.namespace, name).await.map_err(|error| unfound(&error))
    }

    /// The broker that it names, as the operator finds it.
    pub async fn broker(
        &self,
        reference: &BrokerReference,
        vhost: Option<&str>,
    ) -> Result<RabbitmqSettings, Failure> {
        let reader = Reader::new(self.client.clone());
        reader.broker(&self.namespace, reference, vhost).await.map_err(|error| unfound(&error))
    }
}

fn unfound(error: &FetchError) -> Failure {
    let code = match error {
        FetchError::Settings { .. } => Failure::USAGE,
        _ => Failure::UNAVAILABLE,
    };
    Failure::new(code, error.to_string())
}

fn failed(error: &dyn Display) -> Failure {
    Failure::new(Failure::UNAVAILABLE, format!("Kubernetes can't be asked: {error}"))
}
