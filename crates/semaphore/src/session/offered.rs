//! Which protocols the software of a broker can carry. See `amqp/features` for the
//! features, and docs/brokers.md for the table.

use lockkeeper_amqp::features::Features;
use lockkeeper_plan::naming::{LockName, Profile, Protocol};

use crate::error::BrokerError;

/// Checks that the broker offers what clients and administrators of `lock` need.
///
/// # Errors
///
/// [`BrokerError::Unsupported`] with the protocol and the missing feature.
pub fn check(features: Features, lock: &LockName) -> Result<(), BrokerError> {
    let (offered, what) = match lock.protocol() {
        Protocol::TrueMutex | Protocol::ExclusiveQueue(Profile::Guideline) => return Ok(()),
        Protocol::ExclusiveQueue(Profile::AmqpLocksPython) => (
            features.has_length_limit(),
            "the profile AmqpLocksPython, whose queues have the argument x-max-length",
        ),
        Protocol::ExclusiveConsumer => (
            features.notifies_consumers(),
            "the protocol ExclusiveConsumer, because a holder gets no notice when its queue is deleted",
        ),
        Protocol::Token(_) => (
            features.shows_unacknowledged(),
            "the protocol Token, because only RabbitMQ's management API shows the number of tokens",
        ),
    };
    if offered { Ok(()) } else { Err(unsupported(features, what)) }
}

/// Checks that slots can have records.
///
/// # Errors
///
/// [`BrokerError::Unsupported`] if they can't.
pub fn check_records(features: Features) -> Result<(), BrokerError> {
    if features.has_length_limit() {
        return Ok(());
    }
    Err(unsupported(
        features,
        "fencing and lockDelay, whose records need the queue argument x-max-length",
    ))
}

fn unsupported(features: Features, what: &'static str) -> BrokerError {
    BrokerError::Unsupported { broker: features.product(), what }
}
