//! Reading Secrets and `RabbitmqClusters` by name, one at a time (never list, never
//! watch), and whose they may be. What is read is kept for a moment only. What it
//! means for a connection is `plan::connection`'s.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use secrecy::SecretString;

use super::FetchError;
use crate::plan::connection::{
    ALLOWED_NAMESPACES, BrokerReference, CONNECTION_URI, ClusterFacts, RabbitmqSettings,
    SecretData, is_allowed,
};

/// How long something once read is taken as current: objects that share a Secret
/// share its reads, and a rotated password or certificate is used after at most this
/// long.
pub(super) const FRESH: Duration = Duration::from_secs(10);

/// How long all take it that something could not be read: a thousand objects ask for
/// the same Secret when it is gone, and whoever makes it is not waited for much longer.
const FAILED: Duration = Duration::from_secs(1);

/// What was read at a time; being read while it is locked.
type Cached<T> = Arc<tokio::sync::Mutex<Option<(Instant, Result<Arc<T>, FetchError>)>>>;

/// Reads, and remembers for ten seconds.
pub struct Reader {
    client: Client,
    secrets: Cache<ReadSecret>,
    clusters: Cache<ClusterFacts>,
}

struct ReadSecret {
    data: SecretData,
    allowed: Option<String>,
}

struct Cache<T>(Mutex<HashMap<(String, String), Cached<T>>>);

impl<T> Cache<T> {
    /// What is known of this, read if it is not known or not current.
    async fn get(
        &self,
        namespace: &str,
        name: &str,
        read: impl AsyncFnOnce() -> Result<T, FetchError>,
    ) -> Result<Arc<T>, FetchError> {
        let cached = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.entry((namespace.to_owned(), name.to_owned())).or_default().clone()
        };
        // Held across the read: a thousand objects of one Secret cause one read.
        let mut cached = cached.lock().await;
        if let Some((at, known)) = cached.as_ref()
            && at.elapsed() < if known.is_ok() { FRESH } else { FAILED }
        {
            return known.clone();
        }
        *cached = None;
        let found = read().await.map(Arc::new);
        *cached = Some((Instant::now(), found.clone()));
        found
    }
}

impl Reader {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, secrets: Cache(Mutex::default()), clusters: Cache(Mutex::default()) }
    }

    /// The data of a Secret in the namespace of whoever names it.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<SecretData, FetchError> {
        Ok(self.read_secret(namespace, name).await?.data.clone())
    }

    /// The broker that a resource of `namespace` names, and the virtual host, if the
    /// resource names one. Cancel safe.
    pub async fn broker(
        &self,
        namespace: &str,
        reference: &BrokerReference,
        vhost: Option<&str>,
    ) -> Result<RabbitmqSettings, FetchError> {
        let owner = reference.namespace.as_deref().unwrap_or(namespace);
        let may_use = |kind, name: &str, allowed: Option<&str>| {
            if owner == namespace || is_allowed(allowed, namespace) {
                return Ok(());
            }
            Err(FetchError::NotAllowed {
                kind,
                name: name.to_owned(),
                owner: owner.to_owned(),
                namespace: namespace.to_owned(),
            })
        };
        let name = reference.name.as_str();
        if !reference.is_cluster {
            let secret = self.read_secret(owner, name).await?;
            may_use("Secret", name, secret.allowed.as_deref())?;
            return RabbitmqSettings::from_secret(&secret.data, vhost)
                .map_err(|source| FetchError::Settings { name: name.to_owned(), source });
        }
        let cluster = self.clusters.get(owner, name, async || self.cluster(owner, name).await);
        let cluster = cluster.await?;
        may_use("RabbitmqCluster", name, cluster.allowed.as_deref())?;
        if cluster.is_stopped {
            return Err(FetchError::ClusterScaledToZero { name: name.to_owned() });
        }
        let Some(binding) = &cluster.binding else {
            return Err(FetchError::ClusterNotReady { name: name.to_owned() });
        };
        let user = self.read_secret(owner, binding).await?;
        // The issuer of the cluster's certificate, where cert-manager or whoever made the
        // Secret put it there; else the machine's authorities decide.
        let mut authorities = None;
        for name in &cluster.certificates {
            if authorities.is_none() {
                let secret = self.read_secret(owner, name).await?;
                authorities = secret.data.get("ca.crt").cloned();
            }
        }
        RabbitmqSettings::from_cluster(&cluster, &user.data, authorities, vhost)
            .map_err(|source| FetchError::Settings { name: binding.clone(), source })
    }

    async fn read_secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<ReadSecret>, FetchError> {
        let read = async || {
            let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
            let secret = api.get_opt(name).await.map_err(|error| FetchError::Unreadable {
                name: name.to_owned(),
                source: error.into(),
            })?;
            let secret = secret.ok_or_else(|| FetchError::SecretNotFound {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })?;
            let allowed = secret.annotations().get(ALLOWED_NAMESPACES).cloned();
            let text = |value: Vec<u8>| String::from_utf8(value).ok().map(SecretString::from);
            let data = secret.data.unwrap_or_default().into_iter();
            let data = data.filter_map(|(key, value)| Some((key, text(value.0)?))).collect();
            Ok(ReadSecret { data, allowed })
        };
        self.secrets.get(namespace, name, read).await
    }

    async fn cluster(&self, namespace: &str, name: &str) -> Result<ClusterFacts, FetchError> {
        let kind = GroupVersionKind::gvk("rabbitmq.com", "v1beta1", "RabbitmqCluster");
        let kind = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
        let cluster = api.get(name).await.map_err(|error| match &error {
            // Of a kind that is not there the API server knows no names either.
            kube::Error::Api(status) if status.code == 404 => {
                let is_known =
                    |details: &kube::core::response::StatusDetails| !details.name.is_empty();
                if status.details.as_ref().is_some_and(is_known) {
                    let (namespace, name) = (namespace.to_owned(), name.to_owned());
                    FetchError::ClusterNotFound { namespace, name }
                } else {
                    FetchError::ClusterKindMissing
                }
            }
            _ => FetchError::ClusterUnreadable { name: name.to_owned(), source: error.into() },
        })?;
        let annotation = |name: &str| cluster.annotations().get(name).cloned();
        Ok(ClusterFacts {
            allowed: annotation(ALLOWED_NAMESPACES),
            connection_uri: annotation(CONNECTION_URI),
            ..ClusterFacts::read(namespace, name, &cluster.data)
        })
    }
}
