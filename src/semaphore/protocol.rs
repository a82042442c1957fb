//! The lock protocols, and the mapping from a lock to its protocol. A new protocol is a
//! module here and one arm in each `match` of this file. See `interface` for what it
//! implements, and `admin` and `client` for the callers.

pub mod fault;
pub mod hold;
pub mod holders;
pub mod interface;
pub mod numbered;
pub mod revoke;
pub mod token;
pub mod waiters;

use std::sync::Arc;

use self::interface::AdminProtocol;
use self::numbered::Numbered;
use self::numbered::exclusive_consumer::ExclusiveConsumer;
use self::numbered::exclusive_queue::ExclusiveQueue;
use self::numbered::holders::HolderCache;
use self::numbered::holding::Holding;
use self::token::Token;
use super::session::access::Access;
use crate::plan::naming::{LockName, Protocol};

/// How a client takes a unit of a lock.
pub enum Claiming {
    /// It chooses a numbered slot and claims it.
    Slot(&'static dyn Holding),
    /// The broker gives it a token.
    Token,
}

/// Returns how a client takes a unit of this lock.
pub fn claiming(lock: &LockName) -> Claiming {
    match lock.protocol() {
        Protocol::ExclusiveQueue(_) => Claiming::Slot(&ExclusiveQueue),
        Protocol::ExclusiveConsumer => Claiming::Slot(&ExclusiveConsumer),
        Protocol::Token(_) => Claiming::Token,
    }
}

/// The protocols of one administrator, with the state that each keeps.
pub struct Protocols {
    exclusive_queue: Numbered<ExclusiveQueue>,
    exclusive_consumer: Numbered<ExclusiveConsumer>,
    token: Token,
}

impl Protocols {
    /// Creates the protocols of an administrator with this access.
    pub fn new(access: &Access) -> Self {
        let holders = Arc::new(HolderCache::new(access));
        Self {
            exclusive_queue: Numbered::new(ExclusiveQueue, Arc::clone(&holders)),
            exclusive_consumer: Numbered::new(ExclusiveConsumer, holders),
            token: Token::default(),
        }
    }

    /// Returns the protocol of the lock.
    pub fn of(&self, lock: &LockName) -> &dyn AdminProtocol {
        match lock.protocol() {
            Protocol::ExclusiveQueue(_) => &self.exclusive_queue,
            Protocol::ExclusiveConsumer => &self.exclusive_consumer,
            Protocol::Token(_) => &self.token,
        }
    }
}
