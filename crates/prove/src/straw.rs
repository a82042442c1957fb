//! Straw clients: small clients with seeded bugs, and correct ones, that speak the driver
//! protocol on stdin and stdout. They are the controls of every verdict, because the prover must
//! distinguish them. See `controls` for how they are run.
//!
//! - [`Bug`]: the bugs, with the property that must detect each.
//! - `session`: one connection, and the broker's answers as values.
//! - `client`: the common part of all clients.
//! - `queue`, `consumer`, `token`: the clients of the protocols.
//! - `admin`: the administrator for all protocols.
//! - [`serve`]: the loop that reads and answers requests.

mod admin;
mod bug;
mod client;
mod consumer;
mod queue;
pub mod serve;
mod session;
mod token;

use lockkeeper_plan::naming::LockName;

use crate::driver::message::{Done, Line};
pub use bug::Bug;

/// Returns the number of slots of a lock on the broker. `None`: AMQP does not show it.
///
/// # Errors
///
/// The broker cannot be used.
pub async fn count(url: &str, lock: LockName) -> Result<Option<u32>, lapin::Error> {
    let counted = admin::Admin::new(url.to_owned(), lock, None, OVERSHOOT).count().await?;
    Ok(match counted {
        Line::Ok(Done { slots, .. }) => slots,
        _ => None,
    })
}

/// Number of missing slots after which a count ends.
const OVERSHOOT: u32 = 16;
