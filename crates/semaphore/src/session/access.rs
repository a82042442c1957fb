//! The connections of one administrator to one virtual host, and what all its operations
//! share. See `change` for one operation under the admin mutex.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use derive_setters::Setters;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::endpoint::Endpoint;
use lockkeeper_amqp::identity::greet;
use lockkeeper_amqp::lazy::LazyConnection;
use lockkeeper_amqp::probe::{ProbeContext, Prober};
use lockkeeper_net::opening::Gate;
use lockkeeper_plan::MayAct;
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_plan::naming::{LockName, Profile};

use super::endpoint::{Limits, endpoint};
use super::identity::BrokerIdentity;
use super::mutex::LocalLocks;
use crate::error::BrokerError;
use crate::management::Management;
use crate::management::listing::{ListedQueues, Listing};
use crate::management::nodes;
use crate::management::risks::{RiskCache, Risks};
use crate::queues::wait;

/// Maximum number of semaphores changed concurrently. Each change takes channels of the
/// admin connection. A broker allows 2,047 of them, and every new one costs it four
/// processes. More concurrent changes are no faster.
const CHANGES_AT_ONCE: usize = 32;

/// Maximum number of locks observed concurrently: enough to fill every batch of probes.
/// Further ones would only keep their queue names in memory while they wait.
const LOOKS_AT_ONCE: usize = 128;

/// Number of queues inspected together on one channel.
const LOOKED_AT_TOGETHER: usize = 500;

/// Options for the connections to a broker and for changes.
#[derive(Clone, Debug, Setters)]
#[setters(prefix = "with_", strip_option)]
#[non_exhaustive]
pub struct BrokerOptions {
    /// Connection name shown by the broker's management UI.
    #[setters(into)]
    pub client_name: String,
    /// Time limit of each operation. For a batch of probes it covers the whole batch.
    pub operation_timeout: Duration,
    /// Time limit of TCP and AMQP handshake together.
    pub connect_timeout: Duration,
    /// How long to retry while the admin mutex is busy.
    pub mutex_patience: Duration,
    /// Maximum age of the management API's list of holders.
    pub facts_interval: Duration,
    /// Maximum age of the management API's list of slot queues.
    pub list_interval: Duration,
    /// The AMQP heartbeat in seconds. `None`: the broker's value. A client that falls
    /// silent while it holds an admin mutex loses it after two to three heartbeats.
    pub heartbeat: Option<u16>,
    /// Checked before each effect.
    pub may_act: MayAct,
    /// Limits of the connections that are being opened.
    pub gate: Gate,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            client_name: "lockkeeper".to_owned(),
            operation_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            mutex_patience: Duration::from_secs(5),
            facts_interval: Duration::from_secs(10),
            list_interval: Duration::from_secs(20),
            heartbeat: None,
            may_act: MayAct::default(),
            gate: Gate::default(),
        }
    }
}

/// The connections, and what all operations share.
pub struct Access {
    pub options: BrokerOptions,
    settings: RabbitmqSettings,
    endpoint: Arc<Endpoint>,
    /// Owns the admin mutexes and carries all changes.
    admin: LazyConnection,
    /// The same for locks of profile `AmqpLocksPython`. A broker that rejects their slots
    /// closes the whole connection, which must not affect other changes.
    admin_python: LazyConnection,
    probe_connection: Arc<LazyConnection>,
    prober: Prober,
    pub local_locks: LocalLocks,
    /// Concurrency limit of observations.
    looks: tokio::sync::Semaphore,
    /// Concurrency limit of changes.
    pub turns: Arc<tokio::sync::Semaphore>,
    /// Locks whose last change lost its connection with effects in flight.
    disturbed: Mutex<HashSet<LockName>>,
    identity: Mutex<Option<(Weak<Connection>, BrokerIdentity)>>,
    /// The management API, if there is one.
    pub management: Option<Arc<Management>>,
    /// The slots that it lists.
    pub listing: Listing,
    risks: RiskCache,
}

impl Access {
    /// Creates the connections, which are opened on first use.
    pub fn new(settings: RabbitmqSettings, options: BrokerOptions) -> Self {
        let management = Management::new(&settings).map(Arc::new);
        let limits = Limits {
            connect_timeout: options.connect_timeout,
            operation_timeout: options.operation_timeout,
            heartbeat: options.heartbeat,
            gate: options.gate.clone(),
        };
        let endpoint = Arc::new(endpoint(&settings, options.client_name.clone(), limits));
        let probe_connection = Arc::new(LazyConnection::new(Arc::clone(&endpoint), "probe"));
        Self {
            options,
            admin: LazyConnection::new(Arc::clone(&endpoint), "admin"),
            admin_python: LazyConnection::new(Arc::clone(&endpoint), "admin of AmqpLocksPython"),
            settings,
            endpoint,
            prober: Prober::new(Arc::clone(&probe_connection)),
            probe_connection,
            local_locks: LocalLocks::default(),
            looks: tokio::sync::Semaphore::new(LOOKS_AT_ONCE),
            turns: Arc::new(tokio::sync::Semaphore::new(CHANGES_AT_ONCE)),
            disturbed: Mutex::default(),
            identity: Mutex::default(),
            management,
            listing: Listing::default(),
            risks: RiskCache::default(),
        }
    }

    /// Returns the address and credentials of the connection.
    pub fn settings(&self) -> &RabbitmqSettings {
        &self.settings
    }

    /// Returns the connection for changes to this lock.
    pub fn admin_of(&self, lock: &LockName) -> &LazyConnection {
        match lock.profile() {
            Profile::Guideline => &self.admin,
            Profile::AmqpLocksPython => &self.admin_python,
        }
    }

    /// Returns the connection for observations.
    pub fn probe_connection(&self) -> &LazyConnection {
        &self.probe_connection
    }

    /// Returns read-only access to the broker.
    pub fn probe_context(&self) -> ProbeContext<'_> {
        ProbeContext { prober: &self.prober, connection: &self.probe_connection }
    }

    /// Waits for the turn of an observation.
    pub async fn turn_to_look(&self) -> Result<tokio::sync::SemaphorePermit<'_>, BrokerError> {
        // Fails only if the semaphore is closed, which never happens.
        self.looks.acquire().await.map_err(|_| BrokerError::Interrupted)
    }

    /// Returns the broker's description of itself. Logs in as well. Cancel safe.
    pub async fn identity(&self) -> Result<BrokerIdentity, BrokerError> {
        let connection = self.probe_connection.get().await?;
        let known = self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((of, identity)) = known
            && of.ptr_eq(&Arc::downgrade(&connection))
        {
            return Ok(identity);
        }
        let (greeting, cluster_id) = tokio::join!(greet(&self.endpoint), self.cluster_id());
        let identity = BrokerIdentity::new(&greeting?, cluster_id);
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Arc::downgrade(&connection), identity.clone()));
        Ok(identity)
    }

    /// Returns the cluster's id, if the management API shows it to this user.
    async fn cluster_id(&self) -> Option<String> {
        self.management.as_ref()?.cluster_id().await.ok().flatten()
    }

    /// Returns the risks of the lock, from lists that are at most
    /// [`BrokerOptions::list_interval`] old. `None` if the management API shows none.
    pub async fn risks(&self, lock: &LockName) -> Option<Risks> {
        let management = self.management.as_ref()?;
        self.risks.of(management, self.options.list_interval, lock).await
    }

    /// Returns the queues that the management API has listed since then. `None` without a
    /// list of this broker's queues.
    pub async fn listed(&self, since: Option<Instant>) -> Option<Arc<ListedQueues>> {
        let management = self.management.as_ref()?;
        let listed = self.listing.get(management, self.options.list_interval, since).await?;
        let cluster = self.identity().await.ok()?.cluster_name;
        (listed.cluster.as_deref() == Some(cluster.as_str())).then_some(listed)
    }

    /// Names the node in an error about a node that is down.
    pub async fn name_node(&self, error: BrokerError) -> BrokerError {
        nodes::name_in(error, self.management.as_deref()).await
    }

    /// Probes whether each of these queues exists.
    pub async fn exist(&self, names: &[String]) -> Result<Vec<bool>, BrokerError> {
        self.prober.exist(names).await.map_err(BrokerError::from)
    }

    /// Whether any of these queues exists.
    pub async fn any_exists(&self, names: &[String]) -> Result<bool, BrokerError> {
        Ok(self.exist(names).await?.contains(&true))
    }

    /// Whether all of these queues exist. Publishes nothing to them.
    pub async fn all_exist(&self, names: &[String]) -> Result<bool, BrokerError> {
        let mut channel = self.publisher().await?;
        for chunk in names.chunks(LOOKED_AT_TOGETHER) {
            if !channel.all_exist(chunk).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a channel of the connection that may publish.
    pub async fn publisher(&self) -> Result<Channel, BrokerError> {
        self.probe_connection.publisher().await.map_err(BrokerError::from)
    }

    /// Wakes up to `count` waiters of the lock, if it has a wait queue.
    pub async fn wake(&self, lock: &LockName, count: u32) -> Result<(), BrokerError> {
        match lock.wait_queue() {
            Some(queue) if count > 0 => {
                wait::wake(&mut self.publisher().await?, &queue, count, None, false).await
            }
            _ => Ok(()),
        }
    }

    pub fn set_disturbed(&self, lock: &LockName) {
        self.disturbed.lock().unwrap_or_else(PoisonError::into_inner).insert(lock.clone());
    }

    pub fn take_disturbed(&self, lock: &LockName) -> bool {
        self.disturbed.lock().unwrap_or_else(PoisonError::into_inner).remove(lock)
    }
}
