//! The connections to one database: to a server, or to the nodes of a cluster,
//! one each. Opened when they are first needed and opened again when they broke;
//! shared by everything that uses a store. What is sent over them is not decided
//! here, and how one is opened is in `opening.rs`.
//!
//! The redis crate's own `ConnectionManager` is not used: it keeps the failure
//! of a refused login for ever, so a corrected password on the server would go
//! unnoticed, and it reports every refusal during the login, "max number of
//! clients" too, as a wrong password. Nor is its cluster client: a script on the
//! keys of one slot needs nothing of what it splits, gathers and refreshes.

mod nodes;
mod opening;

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::time::{Instant, sleep, timeout};

use super::StoreError;
use crate::plan::connection::RedisSettings;
use crate::plan::naming::QueueName;
use nodes::{Node, Nodes};
use opening::{Opener, Purpose};

/// How often one operation is sent on to another node of a cluster.
const MOST_HOPS: u32 = 4;
/// First and longest pause before an operation is sent again while its slot
/// moves to another node.
const MOVING_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// How a store behaves.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Who we are: written into `:producer` when a queue is closed, and shown as
    /// the connection's name in `CLIENT LIST`, after `lockkeeper/`. Should be the
    /// same through the life of the process and different from every other
    /// client's.
    pub client_id: String,
    /// Longest time until a connection is open, login included. Default 3 s.
    pub connect_timeout: Duration,
    /// Longest time until an answer. Default 5 s (the redis crate's own is half
    /// a second, which a server that saves its data exceeds).
    pub response_timeout: Duration,
    /// While a queue is deleted: how long a role that is neither free nor was
    /// ever taken must have been so, before it counts as gone. Default 1 s. See
    /// [`Store::delete`](super::Store::delete).
    pub nameless_role_grace: Duration,
}

impl StoreOptions {
    /// The defaults, with this client id.
    #[must_use]
    pub fn new(client_id: impl Into<String>) -> Self {
        Self {
            client_id: client_id.into(),
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(5),
            nameless_role_grace: Duration::from_secs(1),
        }
    }
}

/// A connection in use. Keeps its attempt's number, so that only this connection
/// is given up when it turns out to be broken, never its successor.
pub(super) struct Lease {
    pub(super) connection: MultiplexedConnection,
    node: Arc<Node>,
    attempt: u64,
    /// Whether it was opened for this caller: a failure is then not that of an
    /// old connection that nobody noticed to be broken.
    pub(super) is_new: bool,
}

/// What a failed command comes to.
pub(super) enum After {
    /// It was not carried out, and which node would is known now: lease again
    /// and send it again.
    Moved,
    /// It was not carried out because the queue's slot is moving to another
    /// node: send it again a little later.
    Moving(StoreError),
    /// It failed.
    Failed(StoreError),
}

/// Opens, shares and replaces the connections.
pub(super) struct Link {
    opener: Opener,
    nodes: Nodes,
}

impl Link {
    pub(super) fn new(settings: RedisSettings, options: StoreOptions) -> Self {
        Self { opener: Opener { settings, options }, nodes: Nodes::default() }
    }

    pub(super) fn settings(&self) -> &RedisSettings {
        &self.opener.settings
    }

    pub(super) fn options(&self) -> &StoreOptions {
        &self.opener.options
    }

    /// Sends something to the server that has the queue (without a queue: to
    /// any), and again where a cluster sends it on. After a failure of the
    /// connection it is unknown whether it was carried out; it is sent once more
    /// only if `may_repeat`, and if the connection had been open before.
    ///
    /// Cancel safe as [`Self::lease`] is; what was sent may have been carried
    /// out or not.
    pub(super) async fn run<T, F>(
        &self,
        queue: Option<&QueueName>,
        mut may_repeat: bool,
        send: impl Fn(MultiplexedConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let started = Instant::now();
        let (mut pause, longest) = MOVING_PAUSE;
        let mut hops = 0;
        loop {
            let lease = self.lease(queue).await?;
            let err = match send(lease.connection.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(err) => err,
            };
            match self.after(&lease, &err) {
                After::Moved if hops < MOST_HOPS => hops += 1,
                After::Moved => {
                    let detail = "the cluster's nodes send us from one to the other".to_owned();
                    return Err(StoreError::Unavailable { detail });
                }
                After::Moving(err) => {
                    if started.elapsed() + pause > self.options().response_timeout {
                        return Err(err);
                    }
                    sleep(pause).await;
                    pause = longest.min(pause * 2);
                }
                After::Failed(StoreError::Unreachable { .. }) if may_repeat && !lease.is_new => {
                    may_repeat = false;
                }
                After::Failed(err) => return Err(err),
            }
        }
    }

    /// The open connection to the server that has the queue (without a queue: to
    /// any), or a new one. Whoever waits for another's attempt shares its
    /// outcome, good or bad.
    ///
    /// Cancel safe: a dropped attempt leaves no trace, the next caller makes its
    /// own.
    pub(super) async fn lease(&self, queue: Option<&QueueName>) -> Result<Lease, StoreError> {
        self.reach(queue, Purpose::Shared).await
    }

    /// The number of the attempt that made the connection that is shared to the
    /// server of this queue, if there is one. No two attempts have the same.
    pub(super) fn attempt(&self, queue: &QueueName) -> Option<u64> {
        self.nodes.of(Some(queue)).ok()?.attempt()
    }

    /// A connection of the caller's own to the server that has the queue, which
    /// waits for answers so long; its keepalive finds out if the server has gone.
    ///
    /// Cancel safe.
    pub(super) async fn open(
        &self,
        queue: &QueueName,
        patience: Duration,
    ) -> Result<MultiplexedConnection, StoreError> {
        Ok(self.reach(Some(queue), Purpose::Own(patience)).await?.connection)
    }

    /// What a failed command comes to. A connection that is broken or leads to
    /// the wrong server is given up.
    pub(super) fn after(&self, lease: &Lease, err: &RedisError) -> After {
        match err.kind() {
            ErrorKind::Server(ServerErrorKind::Moved)
                if self.nodes.learn(&lease.node, &self.settings().host, err) =>
            {
                return After::Moved;
            }
            // A script's keys may be on two nodes while their slot moves, so
            // following ASK leads to TRYAGAIN there.
            ErrorKind::Server(ServerErrorKind::Ask | ServerErrorKind::TryAgain) => {
                let detail = "the queue's slot is moving to another node".to_owned();
                return After::Moving(StoreError::Unavailable { detail });
            }
            _ => {}
        }
        let err = StoreError::from(err.clone());
        if err.spoils_connection() {
            lease.node.retire(lease.attempt);
        }
        After::Failed(err)
    }

    async fn reach(
        &self,
        queue: Option<&QueueName>,
        purpose: Purpose,
    ) -> Result<Lease, StoreError> {
        let node = self.nodes.of(queue)?;
        let first = self.reach_node(&node, purpose).await;
        if !matches!(first, Err(StoreError::Unreachable { .. } | StoreError::Timeout)) {
            return first;
        }
        // Any other node of a cluster knows which one took the place of this.
        for other in self.nodes.others_than(&node) {
            if let Ok(lease) = self.reach_node(&other, purpose).await {
                return Ok(lease);
            }
        }
        first
    }

    async fn reach_node(&self, node: &Arc<Node>, purpose: Purpose) -> Result<Lease, StoreError> {
        let open = || async {
            // Boxed: it is large, rare, and else a part of every operation's future.
            let opening = Box::pin(self.opener.open(node.address(), purpose));
            timeout(self.options().connect_timeout, opening)
                .await
                .unwrap_or(Err(StoreError::Timeout))
        };
        let lease = |connection, attempt, is_new| Lease {
            connection,
            node: Arc::clone(node),
            attempt,
            is_new,
        };
        match purpose {
            // No attempt has this number.
            Purpose::Own(_) => Ok(lease(open().await?, 0, true)),
            Purpose::Shared => {
                let (connection, attempt, is_new) = node.share(open).await?;
                Ok(lease(connection, attempt, is_new))
            }
        }
    }
}

/// Whether a cluster's node refused a command because the queue's slot is on
/// another node, or on its way there.
pub(super) fn is_elsewhere(err: &RedisError) -> bool {
    use ServerErrorKind::{Ask, Moved, TryAgain};
    matches!(err.kind(), ErrorKind::Server(Moved | Ask | TryAgain))
}
