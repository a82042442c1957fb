//! The connections that hold: one for each permit, kept open between two permits
//! so that acquiring needs no connecting. What is declared on them is others'.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::semaphore::connect::{Conn, Endpoint};
use crate::semaphore::error::BrokerError;
use crate::semaphore::lane::Lane;

/// Idle connections kept beyond those asked for; more are closed.
const MAX_IDLE: usize = 16;

/// Connections with nothing declared on them.
pub(super) struct Pool {
    endpoint: Arc<Endpoint>,
    /// How many to have ready.
    warm: usize,
    idle: Mutex<Vec<Arc<Conn>>>,
    warming: AtomicUsize,
}

/// A connection that one acquisition, then one permit has to itself: exclusive
/// queues belong to a connection, and a second declare of the same one on it
/// would succeed, so two permits must never share one. It never publishes: an
/// alarm blocks a connection that does, and then the broker would not notice its
/// death (hazard A10).
///
/// Dropped, it goes back to the pool if nothing of ours can be left on it; else
/// it is ended, which frees whatever it had declared.
pub(in crate::semaphore) struct HoldConn {
    conn: Arc<Conn>,
    pool: Arc<Pool>,
    clean: bool,
}

impl Pool {
    /// Connects nothing yet.
    pub fn new(endpoint: Arc<Endpoint>, warm: usize) -> Arc<Self> {
        Arc::new(Self { endpoint, warm, idle: Mutex::default(), warming: AtomicUsize::new(0) })
    }

    /// An idle connection, or a new one.
    ///
    /// Cancel safe: a dropped attempt closes its socket.
    pub async fn take(self: &Arc<Self>) -> Result<HoldConn, BrokerError> {
        let conn = match self.pop() {
            Some(conn) => conn,
            None => Arc::new(Conn::open(&self.endpoint, "hold").await?),
        };
        self.keep_warm();
        Ok(HoldConn { conn, pool: Arc::clone(self), clean: true })
    }

    fn pop(&self) -> Option<Arc<Conn>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // The latest first: the oldest are those not needed.
        while let Some(conn) = idle.pop() {
            if conn.is_usable() {
                return Some(conn);
            }
        }
        None
    }

    fn put(&self, conn: Arc<Conn>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.warm + MAX_IDLE {
            idle.push(conn);
        }
    }

    /// Closes the idle ones, by protocol.
    pub async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        futures::future::join_all(idle.iter().map(|conn| conn.close())).await;
    }

    /// Makes up for a connection taken, in the background.
    fn keep_warm(self: &Arc<Self>) {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).len();
        if idle + self.warming.load(Ordering::Acquire) >= self.warm {
            return;
        }
        self.warming.fetch_add(1, Ordering::AcqRel);
        // Weak: a client that is gone needs none.
        let pool = Arc::downgrade(self);
        let endpoint = Arc::clone(&self.endpoint);
        tokio::spawn(async move {
            let opened = Conn::open(&endpoint, "hold").await.map(Arc::new);
            if let Ok(conn) = &opened {
                // Its channel too; on drop that waits with the connection.
                let _ = Lane::take(conn).await;
            }
            if let Some(pool) = pool.upgrade() {
                pool.warming.fetch_sub(1, Ordering::AcqRel);
                // Not opened: whoever needs one is told why.
                if let Ok(conn) = opened {
                    pool.put(conn);
                }
            }
        });
    }
}

impl HoldConn {
    pub fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    /// From here on something may be declared on it.
    pub fn begin(&mut self) {
        self.clean = false;
    }

    /// The broker has confirmed that nothing of ours is left on it.
    pub fn settle(&mut self) {
        self.clean = true;
    }
}

impl Drop for HoldConn {
    fn drop(&mut self) {
        if self.clean && self.conn.is_usable() {
            self.pool.put(Arc::clone(&self.conn));
        } else {
            self.conn.kill();
        }
    }
}
