//! What all clones of a client share: its connections, and what it remembers of locks.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper_amqp::endpoint::Endpoint;
use lockkeeper_amqp::lazy::LazyConnection;
use lockkeeper_amqp::probe::{ProbeContext, Prober};
use lockkeeper_net::opening::Gate;
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::LockName;

use super::memory::Memory;
use super::options::ClientOptions;
use super::pool::Pool;
use super::records::Publisher;
use crate::protocol::claim::Checked;
use crate::session::endpoint::{Limits, endpoint};

/// Maximum number of cached locks. Beyond it, the cache is cleared.
const MAX_REMEMBERED: usize = 4096;

/// The state shared by all clones.
pub struct Shared {
    pub options: ClientOptions,
    pub settings: RabbitmqSettings,
    pub endpoint: Arc<Endpoint>,
    pub side: Arc<LazyConnection>,
    pub prober: Prober,
    pub publisher: Arc<Publisher>,
    pub pool: Arc<Pool>,
    pub remembered: Mutex<HashMap<LockName, Memory>>,
    pub checked: Checked,
    /// Number of acquisitions in progress.
    pub acquiring: AtomicUsize,
}

impl Shared {
    /// Creates the state of a client that is not connected yet.
    pub fn new(settings: RabbitmqSettings, options: ClientOptions) -> Self {
        let heartbeat = u16::try_from(options.heartbeat.as_secs()).unwrap_or(u16::MAX).max(1);
        let limits = Limits {
            connect_timeout: options.connect_timeout,
            operation_timeout: options.operation_timeout,
            heartbeat: Some(heartbeat),
            gate: Gate::default(),
        };
        let endpoint = Arc::new(endpoint(&settings, options.client_name.clone(), limits));
        let side = Arc::new(LazyConnection::new(Arc::clone(&endpoint), "probe"));
        Self {
            prober: Prober::new(Arc::clone(&side)),
            publisher: Arc::new(Publisher::new(Arc::clone(&side))),
            side,
            pool: Pool::new(Arc::clone(&endpoint), options.warm),
            settings,
            endpoint,
            options,
            remembered: Mutex::default(),
            checked: Checked::default(),
            acquiring: AtomicUsize::new(0),
        }
    }

    /// Returns read-only access to the broker.
    pub fn probe_context(&self) -> ProbeContext<'_> {
        ProbeContext { prober: &self.prober, connection: &self.side }
    }

    /// Reads or changes what is remembered of a lock.
    fn memory<T>(&self, lock: &LockName, with: impl FnOnce(&mut Memory) -> T) -> T {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MAX_REMEMBERED && !remembered.contains_key(lock) {
            remembered.clear();
        }
        with(remembered.entry(lock.clone()).or_default())
    }

    /// Returns what the client remembers of the lock.
    pub fn recall(&self, lock: &LockName) -> Memory {
        self.memory(lock, |memory| *memory)
    }

    /// Changes what the client remembers of the lock.
    pub fn remember(&self, lock: &LockName, change: impl FnOnce(&mut Memory)) {
        self.memory(lock, change);
    }
}
