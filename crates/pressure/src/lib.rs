//! Access to Redis: the queues of pressure 0.15. A [`Store`] is one
//! database of one server, for administration. It observes queues and applies changes.
//! See [`lockkeeper_plan::pressure_queue`] for the decisions. A [`Queue`] is one queue for
//! programs: put, get, get with acknowledgement, close, delete.
//!
//! Every change is one Lua script (`scripts/*.lua`). No crash and no foreign client can
//! interrupt it halfway, and every script may be sent again if its answer was lost.
//!
//! # Permissions
//!
//! The ACL user requires the key pattern `<prefix>:*` and the commands `EVALSHA
//! SCRIPT|LOAD TYPE EXISTS GET GETRANGE LLEN SET LPUSH RPOP LTRIM DEL`, and for queues with
//! elements in flight `ZCARD ZCOUNT TIME`. `SELECT` is
//! required for a database other than 0, and `ROLE` with sentinels. `INFO` and
//! `CLIENT|SETNAME` are used if allowed. A [`QueueDoctor`] requires `CLIENT|LIST
//! CLIENT|SETNAME WATCH MULTI EXEC` to distinguish a dead client's role from one that is
//! held.

mod client;
mod connection;
mod doctor;
mod doctor_state;
mod error;
mod identity;
mod reply;
mod scripts;
mod store;

pub use client::{
    Awaited, Delivery, EnvironmentError, GiveBackError, Limit, MAX_ELEMENT_BYTES, PutBatchError,
    Queue, QueueError, QueueOptions, QueueRole, QueueSink, Taken, Wait,
};
pub use connection::StoreOptions;
pub use doctor::{QueueDoctor, RepairAction, Repaired};
pub use error::StoreError;
pub use reply::StoreIdentity;
pub use store::{Deletion, Holder, Removed, Store, TakenRoles};

pub use lockkeeper_plan::pressure_queue::{Applied, DesiredQueue, ObservedQueue, QueueEffect};
