//! The lock protocols, and the mapping from a lock to its protocol. A new protocol is a
//! module here and one arm in each `match` of this file. See `interface` for the traits
//! that it implements, and `admin` and `client` for the callers.

pub mod claim;
pub mod fault;
pub mod hold;
pub mod holders;
pub mod interface;
pub mod mismatch;
pub mod mutex;
pub mod numbered;
pub mod revoke;
pub mod token;
pub mod waiters;

use std::sync::Arc;

use lockkeeper_plan::naming::{LockName, Protocol};

use self::claim::ClientProtocol;
use self::interface::{AdminProtocol, LockProtocol};
use self::mutex::TrueMutex;
use self::numbered::Numbered;
use self::numbered::exclusive_consumer::ExclusiveConsumer;
use self::numbered::exclusive_queue::ExclusiveQueue;
use self::numbered::holders::HolderCache;
use self::token::Token;
use super::error::BrokerError;
use super::session::access::Access;

/// How a client takes a unit of a lock.
pub enum Claiming {
    /// It chooses a slot and claims it.
    Slot(&'static dyn ClientProtocol),
    /// The broker gives it a token.
    Token,
}

/// Returns how a client takes a unit of this lock.
pub fn claiming(lock: &LockName) -> Claiming {
    match lock.protocol() {
        Protocol::ExclusiveQueue(_) => Claiming::Slot(&ExclusiveQueue),
        Protocol::ExclusiveConsumer => Claiming::Slot(&ExclusiveConsumer),
        Protocol::Token(_) => Claiming::Token,
        Protocol::TrueMutex => Claiming::Slot(&TrueMutex),
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
    pub fn of(&self, lock: &LockName) -> &dyn LockProtocol {
        match self.administered(lock) {
            Ok(protocol) => protocol,
            Err(_) => &TrueMutex,
        }
    }

    /// Returns the protocol of a lock that an administrator may change.
    pub fn administered(&self, lock: &LockName) -> Result<&dyn AdminProtocol, BrokerError> {
        match lock.protocol() {
            Protocol::ExclusiveQueue(_) => Ok(&self.exclusive_queue),
            Protocol::ExclusiveConsumer => Ok(&self.exclusive_consumer),
            Protocol::Token(_) => Ok(&self.token),
            Protocol::TrueMutex => Err(BrokerError::NothingToAdminister { lock: lock.to_string() }),
        }
    }
}
