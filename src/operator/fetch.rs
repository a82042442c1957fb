//! The first I/O of a reconcile: from the names in a spec to a handle on a
//! server. Reads Secrets by name, one at a time (never list, never watch), and
//! keeps one handle for each server and identity. Decides nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use secrecy::{ExposeSecret, SecretString};

use crate::api::conditions::reason;
use crate::plan::ErrorClass;
use crate::plan::connection::{
    ManagementSettings, RabbitmqSettings, RedisSettings, SecretData, SettingsError, TlsSettings,
};
use crate::pressure::{Store, StoreOptions};
use crate::semaphore::{Broker, BrokerOptions};

/// Why there is no connection to try. No value of a Secret is ever in it.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Neither the resource nor the operator names a server.
    #[error(
        "the resource names no connection and the operator has no default one: set {field}, or start the operator with {flag}"
    )]
    NoConnection {
        /// The field of the resource.
        field: &'static str,
        /// The flag of the operator.
        flag: &'static str,
    },
    /// The Secret does not exist.
    #[error(
        "there is no Secret {name:?} in the namespace {namespace:?}: create it, or correct the reference"
    )]
    SecretNotFound {
        /// The Secret's namespace.
        namespace: String,
        /// The Secret's name.
        name: String,
    },
    /// The Secret's contents don't make a connection.
    #[error("Secret {name:?}: {source}")]
    Settings {
        /// The Secret's name.
        name: String,
        /// What is wrong.
        source: SettingsError,
    },
    /// The API server would not give the Secret.
    #[error("could not read the Secret {name:?}: {source}")]
    Unreadable {
        /// The Secret's name.
        name: String,
        /// What the API server said.
        source: kube::Error,
    },
}

impl FetchError {
    /// CamelCase, for conditions and events.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoConnection { .. } => reason::NO_CONNECTION,
            Self::SecretNotFound { .. } => reason::SECRET_NOT_FOUND,
            Self::Settings { source: SettingsError::MissingKey { .. }, .. } => {
                reason::SECRET_KEY_MISSING
            }
            Self::Settings { source: SettingsError::BadValue { .. }, .. } => reason::SECRET_INVALID,
            Self::Unreadable { .. } => reason::SECRET_UNREADABLE,
        }
    }

    /// What it means for the next attempt. A Secret may be on its way, so its
    /// absence is waited out.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoConnection { .. } => ErrorClass::Invalid,
            Self::SecretNotFound { .. } | Self::Settings { .. } => {
                ErrorClass::Waiting(SECRET_FRESH)
            }
            Self::Unreadable { .. } => ErrorClass::Transient,
        }
    }

    /// Whether the Secret is gone, so that a cleanup has nothing to connect with.
    #[must_use]
    pub fn is_secret_gone(&self) -> bool {
        matches!(self, Self::SecretNotFound { .. })
    }
}

/// How long a Secret once read is taken as current: objects that share a Secret
/// share its reads, and a rotated password is used after at most this long.
const SECRET_FRESH: Duration = Duration::from_secs(10);

/// A handle that nobody asked for this long is dropped, and its connections with it.
const HANDLE_IDLE: Duration = Duration::from_mins(5);

type CachedSecret = Arc<tokio::sync::Mutex<Option<(Instant, Arc<SecretData>)>>>;

/// Where connections come from.
pub struct Connections {
    client: Client,
    default_rabbitmq: Option<RabbitmqSettings>,
    default_redis: Option<RedisSettings>,
    broker_options: BrokerOptions,
    store_options: StoreOptions,
    secrets: Mutex<HashMap<(String, String), CachedSecret>>,
    brokers: Handles<Broker>,
    stores: Handles<Store>,
}

/// A server as a status shows it, and the handle on it.
pub struct Connected<H> {
    /// Host, port and vhost or database; no credentials.
    pub backend: String,
    /// The handle.
    pub handle: H,
}

impl Connections {
    /// Nothing is connected yet.
    #[must_use]
    pub fn new(
        client: Client,
        default_rabbitmq: Option<RabbitmqSettings>,
        default_redis: Option<RedisSettings>,
        broker_options: BrokerOptions,
        store_options: StoreOptions,
    ) -> Self {
        Self {
            client,
            default_rabbitmq,
            default_redis,
            broker_options,
            store_options,
            secrets: Mutex::default(),
            brokers: Handles::default(),
            stores: Handles::default(),
        }
    }

    /// The broker that a Semaphore names by the Secret `secret` of `namespace`,
    /// or the default one.
    pub async fn broker(
        &self,
        namespace: &str,
        secret: Option<&str>,
        vhost: Option<&str>,
    ) -> Result<Connected<Broker>, FetchError> {
        let settings = match secret {
            Some(name) => {
                let data = self.secret(namespace, name).await?;
                RabbitmqSettings::from_secret(&data, vhost)
                    .map_err(|source| FetchError::Settings { name: name.to_owned(), source })?
            }
            None => {
                let mut settings =
                    self.default_rabbitmq.clone().ok_or(FetchError::NoConnection {
                        field: "spec.rabbitmqClusterReference.connectionSecret",
                        flag: "--amqp-url",
                    })?;
                if let Some(vhost) = vhost {
                    vhost.clone_into(&mut settings.vhost);
                }
                settings
            }
        };
        let vhost = settings.vhost.trim_start_matches('/');
        let backend = format!("{}/{vhost}", settings.address());
        let handle = self.brokers.get(identity_of_broker(&settings), || {
            Broker::new(settings, self.broker_options.clone())
        });
        Ok(Connected { backend, handle })
    }

    /// The store that a `PressureQueue` names by the Secret `secret` of
    /// `namespace`, or the default one.
    pub async fn store(
        &self,
        namespace: &str,
        secret: Option<&str>,
        database: Option<i64>,
    ) -> Result<Connected<Store>, FetchError> {
        let settings = match secret {
            Some(name) => {
                let data = self.secret(namespace, name).await?;
                RedisSettings::from_secret(&data, database)
                    .map_err(|source| FetchError::Settings { name: name.to_owned(), source })?
            }
            None => {
                let mut settings = self.default_redis.clone().ok_or(FetchError::NoConnection {
                    field: "spec.redisReference.connectionSecret",
                    flag: "--redis-url",
                })?;
                settings.database = database.unwrap_or(settings.database);
                settings
            }
        };
        let backend = settings.address();
        let handle = self
            .stores
            .get(identity_of_store(&settings), || Store::new(settings, self.store_options.clone()));
        Ok(Connected { backend, handle })
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<SecretData>, FetchError> {
        let cached = {
            let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
            secrets.entry((namespace.to_owned(), name.to_owned())).or_default().clone()
        };
        // Held across the read: a thousand objects of one Secret cause one read.
        let mut cached = cached.lock().await;
        if let Some((read, data)) = cached.as_ref()
            && read.elapsed() < SECRET_FRESH
        {
            return Ok(Arc::clone(data));
        }
        *cached = None;
        let data = read_secret(&self.client, namespace, name).await?;
        let data = Arc::new(data);
        *cached = Some((Instant::now(), Arc::clone(&data)));
        Ok(data)
    }
}

/// A Secret's data, by way of this client.
pub async fn read_secret(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<SecretData, FetchError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = api
        .get_opt(name)
        .await
        .map_err(|source| FetchError::Unreadable { name: name.to_owned(), source })?;
    let secret = secret.ok_or_else(|| FetchError::SecretNotFound {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })?;
    Ok(secret
        .data
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(key, value)| {
            Some((key, SecretString::from(String::from_utf8(value.0).ok()?)))
        })
        .collect())
}

/// Handles by everything that makes two connections different, the password
/// included: a rotated one makes a new handle, the old one is not used again.
struct Handles<H>(Mutex<HashMap<String, (Instant, H)>>);

impl<H> Default for Handles<H> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<H: Clone> Handles<H> {
    fn get(&self, identity: String, make: impl FnOnce() -> H) -> H {
        let mut handles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        handles.retain(|_, (used, _)| used.elapsed() < HANDLE_IDLE);
        let (used, handle) = handles.entry(identity).or_insert_with(|| (Instant::now(), make()));
        *used = Instant::now();
        handle.clone()
    }
}

// Debug's quoting keeps the parts apart. The result never leaves this file.
fn identity_of_broker(s: &RabbitmqSettings) -> String {
    let [management, administrator] = [&s.management, &s.administrator].map(|api| {
        let tls = |m: &ManagementSettings| m.tls.as_ref().map(identity_of_tls);
        api.as_ref().map(|m| (&m.url, &m.username, m.password.expose_secret(), tls(m)))
    });
    let who = (&s.username, s.password.expose_secret());
    let tls = s.tls.as_ref().map(identity_of_tls);
    format!("{:?}", (&s.host, s.port, &s.vhost, who, tls, management, administrator))
}

fn identity_of_tls(tls: &TlsSettings) -> String {
    let client = tls.client.as_ref().map(|client| (&client.chain, client.key.expose_secret()));
    format!("{:?}", (&tls.authorities, client))
}

fn identity_of_store(s: &RedisSettings) -> String {
    let who = (&s.username, s.password.as_ref().map(ExposeSecret::expose_secret));
    let tls = s.tls.as_ref().map(identity_of_tls);
    format!("{:?}", (s.address(), who, tls))
}
