//! How Redis is touched: the queues of the source document "pressure 0.15". One
//! [`Store`] is one database of one server. What should happen to a queue is
//! decided in [`crate::plan::pressure_queue`]; here it is only read and carried
//! out. [`Queue`] is one queue as programs use it: put, get, close, delete.
//!
//! Every change is one Lua script (`scripts/*.lua`), so no crash and no foreign
//! client falls between two halves of it, and every script may be sent again
//! when its answer was lost.
//!
//! # Permissions
//!
//! The ACL user needs the key pattern `<prefix>:*` and the commands `EVALSHA
//! SCRIPT|LOAD TYPE EXISTS GET GETRANGE LLEN SET LPUSH RPOP LTRIM DEL`, and
//! `SELECT` for another database than 0 and `ROLE` where sentinels name the
//! server. `INFO` and `CLIENT|SETNAME` are used where they are allowed; with
//! `CLIENT|LIST` they let a dead client's role be told from one that is held.

mod client;
mod connection;
mod doctor;
mod error;
mod reply;
mod scripts;
mod store;

pub use client::{
    Awaited, EnvironmentError, GiveBackError, Limit, MAX_ELEMENT_BYTES, PutBatchError, Queue,
    QueueError, QueueOptions, QueueRole, QueueSink, Taken, Wait,
};
pub use connection::StoreOptions;
pub use doctor::{Deed, Repaired};
pub use error::StoreError;
pub use reply::StoreIdentity;
pub use store::{Applied, Deletion, Holder, Store};
