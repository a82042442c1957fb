//! The first I/O of a reconcile: from the names in a spec to a handle on a
//! server, one for each server and identity. What is read for it, and how, is
//! `reading`'s. Decides nothing.

mod error;
mod reading;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use secrecy::ExposeSecret;

pub use self::error::FetchError;
pub use self::reading::Reader;
use crate::plan::connection::{
    BrokerReference, ManagementSettings, RabbitmqSettings, RedisSettings, TlsSettings,
};
use crate::pressure::{Store, StoreOptions};
use crate::semaphore::{Broker, BrokerOptions};

/// A handle that nobody asked for this long is dropped, and its connections with it.
const HANDLE_IDLE: Duration = Duration::from_mins(5);

/// Where connections come from.
pub struct Connections {
    reader: Reader,
    default_rabbitmq: Option<RabbitmqSettings>,
    default_redis: Option<RedisSettings>,
    broker_options: BrokerOptions,
    store_options: StoreOptions,
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
            reader: Reader::new(client),
            default_rabbitmq,
            default_redis,
            broker_options,
            store_options,
            brokers: Handles::default(),
            stores: Handles::default(),
        }
    }

    /// The broker that a Semaphore of `namespace` names, or the default one.
    pub async fn broker(
        &self,
        namespace: &str,
        reference: Option<&BrokerReference>,
        vhost: Option<&str>,
    ) -> Result<Connected<Broker>, FetchError> {
        let settings = match reference {
            Some(reference) => self.reader.broker(namespace, reference, vhost).await?,
            None => {
                let mut settings =
                    self.default_rabbitmq.clone().ok_or(FetchError::NoConnection {
                        field: "spec.rabbitmqClusterReference",
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
                let data = self.reader.secret(namespace, name).await?;
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
