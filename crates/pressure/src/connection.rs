//! The connections to one database: one to a server, or one to each node of a cluster.
//! They are opened on first use, reopened after a loss, and shared by all users of a
//! store. See `opening.rs` for how one is opened.
//!
//! The redis crate's own `ConnectionManager` is not used. It keeps the failure of a
//! refused login permanently, so it would not notice a corrected password on the server.
//! It also reports every refusal during the login as a wrong password, even "max number
//! of clients". The crate's cluster client is not used either: it splits commands,
//! gathers replies and refreshes topology, which a script on the keys of one slot does
//! not need.

mod answers;
mod flow;
mod nodes;
mod opening;
mod options;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::QueueName;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::StoreError;
pub(super) use flow::Connection;
use nodes::{Node, Nodes};
use opening::{Opener, Purpose};
pub use options::StoreOptions;

/// Maximum number of redirections of one operation within a cluster that are followed
/// without a pause.
const MOST_HOPS: u32 = 4;
/// First and longest pause before an operation is sent again while its slot moves to
/// another node.
const MOVING_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A connection in use. It contains its attempt's number, so that an error retires only
/// this connection and never its successor.
pub(super) struct Lease {
    pub(super) connection: Connection,
    node: Arc<Node>,
    attempt: u64,
    /// Whether it was opened for this caller. A failure is then not caused by an old
    /// connection whose loss was unnoticed.
    pub(super) is_new: bool,
}

/// What to do after a failed command.
pub(super) enum After {
    /// It was not performed, and the right node is now known: lease again and send it
    /// again.
    Moved,
    /// It was not performed because the queue's slot is moving to another node: send it
    /// again a little later.
    Moving(StoreError),
    /// It failed.
    Failed(StoreError),
}

/// Opens, shares and replaces the connections.
pub(super) struct ConnectionPool {
    opener: Opener,
    nodes: Nodes,
}

impl ConnectionPool {
    pub(super) fn new(settings: RedisSettings, options: StoreOptions) -> Self {
        Self { opener: Opener::new(settings, options), nodes: Nodes::default() }
    }

    pub(super) fn settings(&self) -> &RedisSettings {
        &self.opener.settings
    }

    pub(super) fn options(&self) -> &StoreOptions {
        &self.opener.options
    }

    /// Sends a command to the server of the queue (without a queue: to any server), and
    /// follows redirections of a cluster. If a previously open connection has ended,
    /// sends it once more over a new one, provided that `may_repeat` or that nothing of
    /// it was sent. The server may have closed the connection long ago.
    ///
    /// Fails with [`StoreError::Unanswered`] if the command may have been performed and
    /// must not be repeated.
    ///
    /// Cancel safe as [`Self::lease`] is. A command that was sent may have been performed
    /// or not.
    pub(super) async fn run<T, F>(
        &self,
        queue: Option<&QueueName>,
        may_repeat: bool,
        send: impl Fn(Connection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let started = Instant::now();
        let (mut pause, longest) = MOVING_PAUSE;
        let (mut hops, mut is_first) = (0, true);
        loop {
            let lease = self.lease(queue).await?;
            let written = lease.connection.written();
            let err = match send(lease.connection.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(err) => err,
            };
            let moving = match self.after(&lease, &err) {
                After::Moved if hops < MOST_HOPS => {
                    hops += 1;
                    continue;
                }
                // While a slot moves, each of two nodes may name the other one.
                After::Moved => {
                    let detail = "the cluster's nodes redirect to each other".to_owned();
                    StoreError::Unavailable { detail }
                }
                After::Moving(err) => err,
                After::Failed(err @ (StoreError::Unreachable { .. } | StoreError::Timeout)) => {
                    let has_ended = err != StoreError::Timeout;
                    let is_unsent = has_ended && lease.connection.written() == written;
                    if !may_repeat && !is_unsent {
                        return Err(StoreError::Unanswered { why: Box::new(err) });
                    }
                    if !has_ended || lease.is_new || !is_first {
                        return Err(err);
                    }
                    is_first = false;
                    continue;
                }
                After::Failed(err) => return Err(err),
            };
            if started.elapsed() + pause > self.options().response_timeout {
                return Err(moving);
            }
            sleep(pause).await;
            pause = longest.min(pause * 2);
        }
    }

    /// Returns the open connection to the server of the queue (without a queue: to any
    /// server), or opens one. A caller that waits for another's attempt shares its
    /// outcome, good or bad.
    ///
    /// Cancel safe: a dropped attempt leaves no trace, and the next caller starts its
    /// own.
    pub(super) async fn lease(&self, queue: Option<&QueueName>) -> Result<Lease, StoreError> {
        self.reach(queue, Purpose::Shared).await
    }

    /// Returns the unique number of the attempt that opened the shared connection to the
    /// server of this queue, if there is one.
    pub(super) fn attempt(&self, queue: &QueueName) -> Option<u64> {
        self.nodes.of(Some(queue)).ok()?.attempt()
    }

    /// Returns when no byte has flowed over the shared connection to the server of this
    /// queue for this long, counted from now at the earliest.
    ///
    /// Cancel safe.
    pub(super) async fn silence(&self, queue: &QueueName, limit: Duration) {
        let began = Instant::now();
        loop {
            let last = self.nodes.of(Some(queue)).ok().and_then(|node| node.last_flow());
            let due = last.map_or(began, |last| last.max(began)) + limit;
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }

    /// Whether no byte has flowed over the shared connection to the server of this queue
    /// for longer than the server may take to answer. It may hang.
    pub(super) fn is_silent(&self, queue: &QueueName) -> bool {
        let last = self.nodes.of(Some(queue)).ok().and_then(|node| node.last_flow());
        last.is_some_and(|last| last.elapsed() > self.options().response_timeout)
    }

    /// Opens a connection of the caller's own to the server of the queue, which waits
    /// this long for answers. Its keepalive detects a server that is gone.
    ///
    /// Cancel safe.
    pub(super) async fn open(
        &self,
        queue: &QueueName,
        patience: Duration,
    ) -> Result<Connection, StoreError> {
        Ok(self.reach(Some(queue), Purpose::Own(patience)).await?.connection)
    }

    /// Decides what to do after a failed command. Retires a connection that is broken or
    /// leads to the wrong server.
    pub(super) fn after(&self, lease: &Lease, err: &RedisError) -> After {
        match err.kind() {
            ErrorKind::Server(ServerErrorKind::Moved)
                if self.nodes.learn(&lease.node, &self.settings().host, err) =>
            {
                return After::Moved;
            }
            // A script's keys may be on two nodes while their slot moves, so following
            // ASK leads to TRYAGAIN there.
            ErrorKind::Server(ServerErrorKind::Ask | ServerErrorKind::TryAgain) => {
                let detail = "the queue's slot is moving to another node".to_owned();
                return After::Moving(StoreError::Unavailable { detail });
            }
            _ => {}
        }
        let err = match StoreError::from(err.clone()) {
            // Each side accepted the other's certificate when the connection was opened.
            StoreError::CertificateRefused { detail } => StoreError::Unreachable { detail },
            other => other,
        };
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
        use StoreError::{HandshakeTimeout, Timeout, Unreachable};

        let node = self.nodes.of(queue)?;
        let first = self.reach_node(&node, purpose).await;
        if !matches!(first, Err(Unreachable { .. } | Timeout | HandshakeTimeout)) {
            return first;
        }
        // Any other node of a cluster knows the successor of this one.
        for other in self.nodes.others_than(&node) {
            if let Ok(lease) = self.reach_node(&other, purpose).await {
                return Ok(lease);
            }
        }
        first
    }

    async fn reach_node(&self, node: &Arc<Node>, purpose: Purpose) -> Result<Lease, StoreError> {
        let open = || async {
            let delayed = |why: &str| StoreError::ConnectionDelayed { detail: why.to_owned() };
            let _place = self.options().gate.enter().await.map_err(delayed)?;
            // Boxed, because it is large and rare, and would otherwise be a part of every
            // operation's future.
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

/// Whether a cluster node refused a command because the queue's slot is on another node,
/// or moving there.
pub(super) fn is_elsewhere(err: &RedisError) -> bool {
    use ServerErrorKind::{Ask, Moved, TryAgain};
    matches!(err.kind(), ErrorKind::Server(Moved | Ask | TryAgain))
}
