//! The pool of connections that hold slots: one for each permit, kept open between
//! permits so that acquiring needs no connection setup. See `attempt` for the objects
//! declared on them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper_amqp::channel::Channel;
use lockkeeper_amqp::connection::Connection;
use lockkeeper_amqp::endpoint::Endpoint;

use crate::error::BrokerError;

/// Maximum number of idle connections beyond the configured ones. Further ones are
/// closed.
const MAX_IDLE: usize = 16;

/// Connections without any declared object.
pub struct Pool {
    endpoint: Arc<Endpoint>,
    /// Number of idle connections to keep ready.
    warm: usize,
    idle: Mutex<Vec<Arc<Connection>>>,
    warming: AtomicUsize,
}

/// A connection that is exclusive to one acquisition and then to one permit. Exclusive
/// queues belong to a connection, and a second declare of the same queue on it would
/// succeed. Two permits must therefore never share a connection. It never publishes: an
/// alarm blocks a publishing connection, and the broker would then not notice its death
/// (hazard A10).
///
/// On drop, it returns to the pool if nothing can be declared on it. Otherwise it is
/// closed, which frees every object that it had declared. A claim that was given up is
/// answered first (hazard A49).
pub struct HoldConnection {
    connection: Arc<Connection>,
    pool: Arc<Pool>,
    clean: bool,
}

impl Pool {
    /// Creates a pool without connecting.
    pub fn new(endpoint: Arc<Endpoint>, warm: usize) -> Arc<Self> {
        Arc::new(Self { endpoint, warm, idle: Mutex::default(), warming: AtomicUsize::new(0) })
    }

    /// Takes an idle connection, or opens a new one.
    ///
    /// Cancel safe: a dropped attempt closes its socket.
    pub async fn take(self: &Arc<Self>) -> Result<HoldConnection, BrokerError> {
        let connection = match self.pop() {
            Some(connection) => connection,
            None => Arc::new(Connection::open(&self.endpoint, "hold").await?),
        };
        self.keep_warm();
        Ok(HoldConnection { connection, pool: Arc::clone(self), clean: true })
    }

    fn pop(&self) -> Option<Arc<Connection>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // Newest first, because the oldest are the surplus ones.
        while let Some(connection) = idle.pop() {
            if connection.suits_new_work() {
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, connection: Arc<Connection>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.warm + MAX_IDLE {
            idle.push(connection);
        }
    }

    /// Closes the idle connections by the AMQP close handshake.
    pub async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        futures::future::join_all(idle.iter().map(|connection| connection.close())).await;
    }

    /// Opens a replacement for a taken connection in the background.
    fn keep_warm(self: &Arc<Self>) {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).len();
        if idle + self.warming.load(Ordering::Acquire) >= self.warm {
            return;
        }
        self.warming.fetch_add(1, Ordering::AcqRel);
        // Weak, because a dropped client needs no connections.
        let pool = Arc::downgrade(self);
        let endpoint = Arc::clone(&self.endpoint);
        tokio::spawn(async move {
            let opened = Connection::open(&endpoint, "hold").await.map(Arc::new);
            if let Ok(connection) = &opened {
                // Open its channel too. On drop it returns to the pool with the
                // connection.
                let _ = Channel::take(connection).await;
            }
            if let Some(pool) = pool.upgrade() {
                pool.warming.fetch_sub(1, Ordering::AcqRel);
                // On failure, the next acquisition connects itself and gets the error.
                if let Ok(connection) = opened {
                    pool.put(connection);
                }
            }
        });
    }
}

impl HoldConnection {
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Marks the connection as possibly having declared objects.
    pub fn begin(&mut self) {
        self.clean = false;
    }

    /// Marks the connection as clean: the broker has confirmed that nothing is declared
    /// on it.
    pub fn settle(&mut self) {
        self.clean = true;
    }
}

impl Drop for HoldConnection {
    fn drop(&mut self) {
        if self.clean && self.connection.suits_new_work() {
            self.pool.put(Arc::clone(&self.connection));
            return;
        }
        self.connection.kill_when_answered();
    }
}
