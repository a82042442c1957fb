//! The first I/O of a reconcile: resolves the references in a spec to a handle on a
//! server, one per server and identity. See `reading` for the objects that are read.
//! Decides nothing.

mod error;
mod openings;
mod reading;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use lockkeeper_plan::connection::{
    BrokerReference, ManagementSettings, RabbitmqSettings, RedisSettings, TlsSettings,
};
use lockkeeper_pressure::{Store, StoreOptions};
use lockkeeper_semaphore::{Broker, BrokerOptions};
use secrecy::ExposeSecret;

pub use self::error::FetchError;
use self::openings::Openings;
pub use self::reading::Reader;
use super::defaults::Defaults;

/// Time after which an unused handle is dropped, and its connections with it.
const HANDLE_IDLE: Duration = Duration::from_mins(5);

/// The connections to servers.
pub struct Connections {
    reader: Reader,
    defaults: Defaults,
    broker_options: BrokerOptions,
    store_options: StoreOptions,
    openings: Openings,
    brokers: Handles<Broker>,
    stores: Handles<Store>,
}

/// A handle on a server, with its name for the status.
#[derive(Clone)]
pub struct Connected<H> {
    /// Host, port and vhost or database; no credentials.
    pub backend: String,
    /// Number that is the same for the same server, user and password, while the handle
    /// is in use.
    pub number: u64,
    /// The handle.
    pub handle: H,
}

impl Connections {
    /// Creates the connections without connecting.
    #[must_use]
    pub fn new(
        client: Client,
        defaults: Defaults,
        broker_options: BrokerOptions,
        store_options: StoreOptions,
    ) -> Self {
        Self {
            reader: Reader::new(client).with_administrators(),
            defaults,
            broker_options,
            store_options,
            openings: Openings::default(),
            brokers: Handles::default(),
            stores: Handles::default(),
        }
    }

    /// Returns the broker that a Semaphore of `namespace` refers to, or the default
    /// broker.
    ///
    /// # Errors
    ///
    /// [`FetchError`]: a referenced object is missing or not allowed, or its settings
    /// are invalid.
    pub async fn broker(
        &self,
        namespace: &str,
        reference: Option<&BrokerReference>,
        vhost: Option<&str>,
    ) -> Result<Connected<Broker>, FetchError> {
        let gate = reference.map(|_| self.openings.of(namespace)).unwrap_or_default();
        let settings = match reference {
            Some(reference) => self.reader.broker(namespace, reference, vhost).await?,
            None => {
                let default = self.defaults.rabbitmq().map_err(FetchError::DefaultSettings)?;
                let mut settings = default.ok_or(FetchError::NoConnection {
                    field: "spec.rabbitmqClusterReference",
                    flag: "--amqp-url",
                })?;
                if let Some(vhost) = vhost {
                    vhost.clone_into(&mut settings.vhost);
                }
                settings
            }
        };
        let backend = settings.place();
        let (number, handle) = self.brokers.get(identity_of_broker(&settings), || {
            Broker::new(settings, self.broker_options.clone().with_gate(gate))
        });
        Ok(Connected { backend, number, handle })
    }

    /// Returns the store that a `PressureQueue` refers to by the Secret `secret` of
    /// `namespace`, or the default store.
    ///
    /// # Errors
    ///
    /// [`FetchError`]: a referenced object is missing or not allowed, or its settings
    /// are invalid.
    pub async fn store(
        &self,
        namespace: &str,
        secret: Option<&str>,
        database: Option<i64>,
    ) -> Result<Connected<Store>, FetchError> {
        let gate = secret.map(|_| self.openings.of(namespace)).unwrap_or_default();
        let settings = match secret {
            Some(name) => {
                let data = self.reader.secret(namespace, name).await?;
                RedisSettings::from_secret(&data, database)
                    .map_err(|source| FetchError::Settings { name: name.to_owned(), source })?
            }
            None => {
                let default = self.defaults.redis().map_err(FetchError::DefaultSettings)?;
                let mut settings = default.ok_or(FetchError::NoConnection {
                    field: "spec.redisReference.connectionSecret",
                    flag: "--redis-url",
                })?;
                settings.database = database.unwrap_or(settings.database);
                settings
            }
        };
        let backend = settings.address();
        let (number, handle) = self.stores.get(identity_of_store(&settings), || {
            Store::new(settings, self.store_options.clone().with_gate(gate))
        });
        Ok(Connected { backend, number, handle })
    }
}

/// Handles, keyed by everything that distinguishes connections, including the password. A
/// rotated password creates a new handle, and the old one is not used again.
struct Handles<H> {
    all: Mutex<HashMap<String, (Instant, u64, H)>>,
    numbers: AtomicU64,
}

impl<H> Default for Handles<H> {
    fn default() -> Self {
        Self { all: Mutex::default(), numbers: AtomicU64::default() }
    }
}

impl<H: Clone> Handles<H> {
    /// Returns the handle and its number.
    fn get(&self, identity: String, make: impl FnOnce() -> H) -> (u64, H) {
        let mut handles = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        handles.retain(|_, (used, ..)| used.elapsed() < HANDLE_IDLE);
        let (used, number, handle) = handles.entry(identity).or_insert_with(|| {
            (Instant::now(), self.numbers.fetch_add(1, Ordering::Relaxed), make())
        });
        *used = Instant::now();
        (*number, handle.clone())
    }
}

// The quoting of Debug separates the parts. The result never leaves this file.
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
