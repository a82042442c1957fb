//! Protocol Token, as described by the RabbitMQ blog. A queue contains one message, a
//! token, per permitted holder. A holder consumes a token and keeps it unacknowledged.
//! The broker delivers a free token to the waiter of the highest priority.
//!
//! This module is the protocol's part for administrators, and reads tokens. See `client`
//! for taking a token and `admin` for the number of tokens.

mod account;
mod admin;
pub mod client;
mod count;
mod drain;
mod held;
mod hold_limit;
mod holders;
mod queue;

use std::sync::Arc;

use async_trait::async_trait;
use lapin::BasicProperties;
use lapin::types::AMQPValue;
use lockkeeper_amqp::channel::Channel;
use lockkeeper_plan::naming::LockName;
use lockkeeper_plan::semaphore::Observed;

use self::count::{Tokens, queue_type};
use self::drain::Drains;
use self::holders::Watched;
use self::queue::DRAIN_TAG;
use super::fault::{Expected, Fault};
use super::holders::Holders;
use super::interface::{AdminProtocol, LockProtocol};
use super::revoke::{HeldBy, Revoke, RevokeError};
use super::waiters::{self, Waiter};
use crate::error::BrokerError;
use crate::management::{Management, ManagementError};
use crate::session::access::Access;
use crate::session::change::{Change, Converged};

/// Protocol Token, and the state of its locks.
#[derive(Default)]
pub struct Token {
    tokens: Arc<Tokens>,
    drains: Drains,
    watched: Arc<Watched>,
}

#[async_trait]
impl LockProtocol for Token {
    async fn observe(
        &self,
        access: &Access,
        lock: &LockName,
        _: u32,
        _: u32,
    ) -> Result<Observed, BrokerError> {
        admin::observe(access, &self.tokens, lock).await.map(Observed::Counted)
    }

    async fn hold_limit(
        &self,
        access: &Access,
        lock: &LockName,
    ) -> Result<Option<&'static str>, BrokerError> {
        Ok(hold_limit::of(queue_type(lock), &access.identity().await?.version))
    }

    async fn waiting(&self, access: &Access, lock: &LockName) -> Result<Option<u32>, BrokerError> {
        holders::waiting(access, lock).await
    }

    async fn waiters(
        &self,
        management: &Management,
        lock: &LockName,
    ) -> Result<Vec<Waiter>, ManagementError> {
        // Clients wait for tokens in the token queue itself, and also hold them there.
        let holding = management.unacknowledged().await?;
        waiters::of_queue(management, &lock.token_queue(), |consumer| {
            let holds = consumer.channel().and_then(|raw| holding.get(raw));
            consumer.consumer_tag != DRAIN_TAG
                && holds.is_none_or(|unacknowledged| *unacknowledged == 0)
        })
        .await
    }

    async fn holders(
        &self,
        access: &Access,
        lock: &LockName,
        seen: &Observed,
        _: u32,
        limit: usize,
    ) -> Holders {
        holders::holders(access, &self.watched, lock, seen.held(), limit).await
    }

    async fn revoke(&self, revoke: &Revoke<'_>) -> Result<(), RevokeError> {
        revoke.by_closing(HeldBy::Token).await
    }
}

#[async_trait]
impl AdminProtocol for Token {
    async fn survey(
        &self,
        change: &Change,
        channel: &mut Channel,
    ) -> Result<(Option<u32>, Observed), BrokerError> {
        let seen = admin::survey((&self.tokens, &self.drains), change, channel).await?;
        Ok((None, Observed::Counted(seen)))
    }

    async fn apply(
        &self,
        change: &Change,
        channel: &mut Channel,
        _: u32,
    ) -> Result<Converged, BrokerError> {
        admin::apply((&self.tokens, &self.drains), change, channel).await
    }

    async fn exists(
        &self,
        change: &Change,
        channel: &mut Channel,
        _: &Observed,
    ) -> Result<bool, BrokerError> {
        Ok(channel.look(&change.lock.token_queue()).await?.is_some())
    }

    async fn check(
        &self,
        change: &Change,
        channel: &mut Channel,
        expected: Expected,
    ) -> Result<Vec<Fault>, BrokerError> {
        admin::check((&self.tokens, &self.drains), change, channel, expected.slots).await
    }
}

/// The smallest id: microseconds since 1970 in the year 2001. Other clients publish all
/// their tokens as `1`, which identifies none of them.
const LEAST_ID: u64 = 1_000_000_000_000_000;

/// Parses the id from a token's body: microseconds since 1970. `None` if Lockkeeper did
/// not publish the token.
fn token_id(body: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(body).ok()?;
    let id: u64 = text.parse().ok()?;
    (id >= LEAST_ID && id.to_string() == text).then_some(id)
}

/// Returns a number that grows with each delivery of this token by a quorum queue. `None`
/// if the queue doesn't count deliveries. (RabbitMQ 4 omits the headers on the first
/// delivery.) RabbitMQ 4.3 counts deliveries in a second header, and no longer every one in
/// the first: not those to consumers of a node that left the cluster. The sum also grows
/// when a queue comes from an older release.
fn times_delivered(properties: &BasicProperties, redelivered: bool) -> Option<u64> {
    let headers = properties.headers().as_ref().map(lapin::types::FieldTable::inner);
    let count = |name| headers.and_then(|headers| headers.get(name)).map(count_of);
    match (count("x-delivery-count"), count("x-acquired-count")) {
        (None, None) => (!redelivered).then_some(0),
        (delivered, acquired) => Some(delivered.unwrap_or(Some(0))? + acquired.unwrap_or(Some(0))?),
    }
}

fn count_of(value: &AMQPValue) -> Option<u64> {
    match *value {
        AMQPValue::LongLongInt(count) => u64::try_from(count).ok(),
        AMQPValue::LongInt(count) => u64::try_from(count).ok(),
        AMQPValue::ShortInt(count) => u64::try_from(count).ok(),
        AMQPValue::ShortShortInt(count) => u64::try_from(count).ok(),
        AMQPValue::LongUInt(count) => Some(count.into()),
        AMQPValue::ShortUInt(count) => Some(count.into()),
        AMQPValue::ShortShortUInt(count) => Some(count.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::FieldTable;

    use super::*;

    #[test]
    fn only_a_body_written_by_lockkeeper_is_a_token_id() {
        assert_eq!(token_id(b"1763756400000000"), Some(1_763_756_400_000_000));
        for body in
            ["", "1", "999999999999999", "01763756400000000", "resource", "1763756400000000\n"]
        {
            assert_eq!(token_id(body.as_bytes()), None, "{body:?}");
        }
    }

    fn with_headers<const N: usize>(headers: [(&str, AMQPValue); N]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert(name.into(), value);
        }
        BasicProperties::default().with_headers(table)
    }

    /// RabbitMQ 4.3 sends both headers, or only the second one.
    #[test]
    fn a_delivery_that_only_one_header_counts_gives_a_greater_fence() {
        let count = AMQPValue::LongLongInt;
        let fences = [
            with_headers([("x-delivery-count", count(7))]),
            with_headers([("x-delivery-count", count(7)), ("x-acquired-count", count(1))]),
            with_headers([("x-delivery-count", count(7)), ("x-acquired-count", count(2))]),
            with_headers([("x-delivery-count", count(8)), ("x-acquired-count", count(3))]),
        ]
        .map(|properties| times_delivered(&properties, true).unwrap());
        assert!(fences.is_sorted_by(|former, next| former < next), "{fences:?}");
        let acquired = with_headers([("x-acquired-count", count(1))]);
        assert_eq!(times_delivered(&acquired, true), Some(1));
        let unreadable = with_headers([("x-acquired-count", AMQPValue::Boolean(true))]);
        assert_eq!(times_delivered(&unreadable, true), None);
    }

    #[test]
    fn a_queue_that_does_not_count_deliveries_gives_no_fence() {
        let counted = |count| with_headers([("x-delivery-count", count)]);
        let none = BasicProperties::default();
        // On the first delivery 3.10 sends 0 and 4.0 sends no header. A classic queue
        // never sends one.
        assert_eq!(times_delivered(&counted(AMQPValue::LongLongInt(0)), false), Some(0));
        assert_eq!(times_delivered(&none, false), Some(0));
        assert_eq!(times_delivered(&counted(AMQPValue::LongLongInt(7)), true), Some(7));
        assert_eq!(times_delivered(&none, true), None);
    }
}
