//! The first I/O of a reconcile: resolves the references in a spec to a handle on a
//! server, one per server and identity. See `reading` for the objects that are read.
//! Decides nothing.

mod error;
mod openings;
mod reading;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
    /// Keeps the handle for later reconciles.
    pub kept: Kept,
}

/// Keeps a handle, and its connections with it, until every clone is dropped. An object has
/// one for as long as it is watched.
pub type Kept = Arc<()>;

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
        let (number, handle, kept) = self.brokers.get(identity_of_broker(&settings), || {
            Broker::new(settings, self.broker_options.clone().with_gate(gate))
        });
        Ok(Connected { backend, number, handle, kept })
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
        let (number, handle, kept) = self.stores.get(identity_of_store(&settings), || {
            Store::new(settings, self.store_options.clone().with_gate(gate))
        });
        Ok(Connected { backend, number, handle, kept })
    }
}

impl Connections {
    /// Closes the connections that no object uses any more.
    pub fn close_unused(&self) {
        self.brokers.drop_unused();
        self.stores.drop_unused();
    }
}

/// Whether a handle is kept, its number, and the handle.
type Handle<H> = (Weak<()>, u64, H);

/// Handles, keyed by everything that distinguishes connections, including the password. A
/// rotated password creates a new handle, and the old one is not used again.
struct Handles<H> {
    all: Mutex<HashMap<String, Handle<H>>>,
    numbers: AtomicU64,
}

impl<H> Default for Handles<H> {
    fn default() -> Self {
        Self { all: Mutex::default(), numbers: AtomicU64::default() }
    }
}

impl<H: Clone> Handles<H> {
    /// Returns the handle and its number.
    fn get(&self, identity: String, make: impl FnOnce() -> H) -> (u64, H, Kept) {
        self.drop_unused();
        let mut handles = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (weak, number, handle) = handles
            .entry(identity)
            .or_insert_with(|| (Weak::new(), self.numbers.fetch_add(1, Ordering::Relaxed), make()));
        let kept = weak.upgrade().unwrap_or_default();
        *weak = Arc::downgrade(&kept);
        (*number, handle.clone(), kept)
    }

    fn drop_unused(&self) {
        let mut handles = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = handles.extract_if(|_, (kept, ..)| kept.strong_count() == 0);
        let unused: Vec<_> = unused.collect();
        // Not under the lock: the end of a handle closes its connections.
        drop(handles);
        drop(unused);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_kept_while_an_object_uses_it_and_no_longer() {
        let handles = Handles::<&str>::default();
        let get = |identity: &str| handles.get(identity.to_owned(), || "handle");
        let (number, _, kept) = get("a");
        let (same, _, also) = get("a");
        assert_eq!(number, same);
        drop(kept);
        handles.drop_unused();
        assert_eq!(get("a").0, number, "another object uses it");
        drop(also);
        handles.drop_unused();
        assert!(handles.all.lock().unwrap().is_empty());
        let (next, _, _kept) = get("a");
        assert_ne!(next, number);
        // Also while only other handles are requested.
        drop(get("b"));
        drop(get("c"));
        assert_eq!(handles.all.lock().unwrap().len(), 2, "a, and c until the next request");
    }
}
