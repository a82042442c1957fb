//! Reads Secrets and `RabbitmqClusters` by name, one at a time (without listing or
//! watching), and checks from which namespaces they may be used. Values are cached for
//! ten seconds, and only the connection keys of a Secret are kept. See `plan::connection`
//! for their meaning.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use lockkeeper_plan::connection::{
    ALLOWED_NAMESPACES, BrokerReference, CONNECTION_URI, ClusterFacts, RabbitmqSettings,
    SecretData, admin_secret, is_allowed, secret_data, with_admin_secret,
};
use secrecy::SecretString;

use super::error::{FRESH, FetchError};

/// Time for which a failed read is cached. A thousand objects may need the same missing
/// Secret, and must find it soon after it is created.
const FAILED: Duration = Duration::from_secs(1);

/// The result of a read and its time. Locked while the read is in progress.
type Cached<T> = Arc<tokio::sync::Mutex<Option<(Instant, Result<Arc<T>, FetchError>)>>>;

/// Reads objects, with a cache of ten seconds.
pub struct Reader {
    client: Client,
    secrets: Cache<SecretData>,
    /// The annotations that permit the use of Secrets from other namespaces.
    allowances: Cache<Option<String>>,
    clusters: Cache<ClusterFacts>,
    /// Whether Secrets of administrators are read, too.
    reads_administrators: bool,
}

/// Cached reads, by namespace and name. An entry is removed when it expires.
struct Cache<T>(Arc<Entries<T>>);

type Entries<T> = Mutex<HashMap<(String, String), Cached<T>>>;

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Send + Sync + 'static> Cache<T> {
    /// Returns the cached value, or reads it if it is missing or expired.
    async fn get(
        &self,
        namespace: &str,
        name: &str,
        read: impl AsyncFnOnce() -> Result<T, FetchError>,
    ) -> Result<Arc<T>, FetchError> {
        let place = (namespace.to_owned(), name.to_owned());
        let entry = lock(&self.0).entry(place.clone()).or_default().clone();
        // Held during the read, so that a thousand objects with one Secret cause one
        // read.
        let mut cached = entry.lock().await;
        if let Some((at, known)) = cached.as_ref()
            && at.elapsed() < if known.is_ok() { FRESH } else { FAILED }
        {
            return known.clone();
        }
        *cached = None;
        let leaving = Leaving { entries: Arc::clone(&self.0), place, entry: Arc::clone(&entry) };
        let found = read().await.map(Arc::new);
        *cached = Some((Instant::now(), found.clone()));
        leaving.after(if found.is_ok() { FRESH } else { FAILED });
        found
    }
}

/// Removes an entry when dropped: when it expires, or immediately if its read is
/// cancelled.
struct Leaving<T: Send + Sync + 'static> {
    entries: Arc<Entries<T>>,
    place: (String, String),
    entry: Cached<T>,
}

impl<T: Send + Sync + 'static> Leaving<T> {
    fn after(self, pause: Duration) {
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            drop(self);
        });
    }
}

impl<T: Send + Sync + 'static> Drop for Leaving<T> {
    fn drop(&mut self) {
        let mut entries = lock(&self.entries);
        if entries.get(&self.place).is_some_and(|entry| Arc::ptr_eq(entry, &self.entry)) {
            entries.remove(&self.place);
        }
    }
}

fn lock<T>(entries: &Entries<T>) -> MutexGuard<'_, HashMap<(String, String), Cached<T>>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reader {
    /// Creates a reader with an empty cache.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            secrets: Cache::default(),
            allowances: Cache::default(),
            clusters: Cache::default(),
            reads_administrators: false,
        }
    }

    /// Also reads the Secret of a broker's administrator, if the connection's Secret names
    /// one. Without, a user needs no permission to read that.
    #[must_use]
    pub fn with_administrators(self) -> Self {
        Self { reads_administrators: true, ..self }
    }

    /// Reads the data of a Secret in the namespace of the resource that refers to it.
    ///
    /// # Errors
    ///
    /// [`FetchError`]: a referenced object is missing or not allowed, or its settings
    /// are invalid.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<SecretData, FetchError> {
        Ok((*self.read_secret(namespace, name).await?).clone())
    }

    /// Reads the settings of the broker that a resource of `namespace` refers to, with
    /// the virtual host if the resource specifies one. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`FetchError`]: a referenced object is missing or not allowed, or its settings
    /// are invalid.
    pub async fn broker(
        &self,
        namespace: &str,
        reference: &BrokerReference,
        vhost: Option<&str>,
    ) -> Result<RabbitmqSettings, FetchError> {
        let owner = reference.namespace.as_deref().unwrap_or(namespace);
        let is_foreign = owner != namespace;
        let name = reference.name.as_str();
        let kind = if reference.is_cluster { "RabbitmqCluster" } else { "Secret" };
        let refused = |is_absent| FetchError::NotAllowed {
            kind,
            name: name.to_owned(),
            owner: owner.to_owned(),
            namespace: namespace.to_owned(),
            is_absent,
        };
        // Missing and forbidden objects cause the same error. Otherwise every namespace
        // could probe for objects of others.
        let hidden = |error: FetchError| match error {
            FetchError::SecretNotFound { .. } | FetchError::ClusterNotFound { .. }
                if is_foreign =>
            {
                refused(true)
            }
            error => error,
        };
        let may_use = |allowed: Option<&str>| {
            if is_foreign && !is_allowed(allowed, namespace) { Err(refused(false)) } else { Ok(()) }
        };
        if !reference.is_cluster {
            // The data is only read once its use is permitted.
            if is_foreign {
                let allowance = async || self.allowance(owner, name).await;
                let allowed = self.allowances.get(owner, name, allowance).await;
                may_use(allowed.map_err(hidden)?.as_deref())?;
            }
            let secret = self.read_secret(owner, name).await.map_err(hidden)?;
            let secret = self.with_administrator(owner, secret).await?;
            return RabbitmqSettings::from_secret(&secret, vhost)
                .map_err(|source| FetchError::Settings { name: name.to_owned(), source });
        }
        let cluster = self.clusters.get(owner, name, async || self.cluster(owner, name).await);
        let cluster = cluster.await.map_err(hidden)?;
        may_use(cluster.allowed.as_deref())?;
        if cluster.is_stopped {
            return Err(FetchError::ClusterScaledToZero { name: name.to_owned() });
        }
        let Some(binding) = &cluster.binding else {
            return Err(FetchError::ClusterNotReady { name: name.to_owned() });
        };
        let user = self.read_secret(owner, binding).await?;
        let authorities = self.authorities(owner, &cluster.certificates).await?;
        RabbitmqSettings::from_cluster(&cluster, &user, authorities, vhost)
            .map_err(|source| FetchError::Settings { name: binding.clone(), source })
    }

    /// Returns the authority of a cluster's certificate, if one of its Secrets contains it, as
    /// Secrets of cert-manager do. Otherwise the system's authorities apply.
    async fn authorities(
        &self,
        owner: &str,
        secrets: &[String],
    ) -> Result<Option<SecretString>, FetchError> {
        for name in secrets {
            let secret = self.read_secret(owner, name).await?;
            if let Some(authorities) = secret.get("ca.crt") {
                return Ok(Some(authorities.clone()));
            }
        }
        Ok(None)
    }

    /// Adds the address of the broker's administrator to the data of a connection's Secret,
    /// if that is in another Secret.
    async fn with_administrator(
        &self,
        namespace: &str,
        data: Arc<SecretData>,
    ) -> Result<Arc<SecretData>, FetchError> {
        let name = admin_secret(&data).filter(|_| self.reads_administrators);
        let Some(name) = name else { return Ok(data) };
        let admin = self.read_secret(namespace, &name).await?;
        with_admin_secret((*data).clone(), &admin)
            .map(Arc::new)
            .map_err(|source| FetchError::Settings { name, source })
    }

    async fn read_secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<SecretData>, FetchError> {
        let read = async || {
            let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
            let secret = found(api.get_opt(name).await, namespace, name)?;
            let data = secret.data.unwrap_or_default().into_iter();
            secret_data(data.map(|(key, value)| (key, value.0)))
                .map_err(|source| FetchError::Settings { name: name.to_owned(), source })
        };
        self.secrets.get(namespace, name, read).await
    }

    /// Reads the annotation of a Secret that lists the namespaces that may use it.
    async fn allowance(&self, namespace: &str, name: &str) -> Result<Option<String>, FetchError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let metadata = found(api.get_metadata_opt(name).await, namespace, name)?;
        Ok(metadata.annotations().get(ALLOWED_NAMESPACES).cloned())
    }

    async fn cluster(&self, namespace: &str, name: &str) -> Result<ClusterFacts, FetchError> {
        let kind = GroupVersionKind::gvk("rabbitmq.com", "v1beta1", "RabbitmqCluster");
        let kind = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
        let cluster = api.get(name).await.map_err(|error| match &error {
            // If the kind is not installed, the answer has no name in its details.
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

fn found<T>(answer: kube::Result<Option<T>>, namespace: &str, name: &str) -> Result<T, FetchError> {
    let answer = answer
        .map_err(|error| FetchError::Unreadable { name: name.to_owned(), source: error.into() })?;
    answer.ok_or_else(|| FetchError::SecretNotFound {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_secret_that_was_read_is_shared_while_current_and_then_dropped() {
        let (cache, start) = (Cache::default(), Instant::now());
        let read = async || cache.get("ns", "a", async || Ok("a".to_owned())).await;
        let first = read().await.unwrap();
        let again = read().await.unwrap();
        assert!(Arc::ptr_eq(&first, &again) || start.elapsed() >= FRESH, "read once");
        let kept = Arc::downgrade(&first);
        drop((first, again));
        while kept.upgrade().is_some() || !lock(&cache.0).is_empty() {
            assert!(start.elapsed() < FRESH * 12, "it is still there");
            tokio::time::sleep(FAILED / 10).await;
        }
        assert!(start.elapsed() >= FRESH, "it was there while it was current");
    }

    #[tokio::test]
    async fn a_failed_read_and_one_that_is_given_up_leave_nothing() {
        let cache = Cache::<String>::default();
        let hanging = cache.get("ns", "hanging", async || std::future::pending().await);
        assert!(tokio::time::timeout(FAILED / 10, hanging).await.is_err());
        assert!(lock(&cache.0).is_empty(), "it was given up");
        let gone = async || Err(FetchError::ClusterKindMissing);
        cache.get("ns", "gone", gone).await.unwrap_err();
        let start = Instant::now();
        while !lock(&cache.0).is_empty() {
            assert!(start.elapsed() < FRESH * 12, "it is still there");
            tokio::time::sleep(FAILED / 10).await;
        }
    }
}
