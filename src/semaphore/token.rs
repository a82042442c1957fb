//! Protocol Token, the RabbitMQ blog's: a queue with one message, a token, for each
//! that may hold, who has taken one and never acknowledges it. The broker itself gives
//! a free token to who waits, the highest priority first. Here are the protocol in
//! the terms of [`Protocol`] and what a token says; taking one is `client`'s, how many
//! there are `admin`'s.

mod account;
mod admin;
mod client;
mod drain;
mod held;
mod holders;
mod queue;

use futures::FutureExt;
use futures::future::BoxFuture;
use lapin::BasicProperties;
use lapin::types::AMQPValue;

pub(super) use self::admin::Tokens;
use super::broker::Inner;
use super::check::Fault;
use super::client::{AcquireError, AcquireOptions, Lock, Permit, Wait};
use super::converge::{Change, Converged};
use super::error::BrokerError;
use super::holders::Holders;
use super::lane::Lane;
use super::protocol::Protocol;
use crate::plan::naming::LockName;
use crate::plan::semaphore::{SlotWish, SlotsSeen};

/// The protocol.
pub(super) struct Token;

impl Protocol for Token {
    fn acquire<'a>(
        &'static self,
        lock: &'a Lock,
        options: &'a AcquireOptions,
        wait: Wait,
    ) -> BoxFuture<'a, Result<Permit, AcquireError>> {
        client::acquire(lock, options, wait).boxed()
    }

    fn observe<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        _: u32,
        _: u32,
    ) -> BoxFuture<'a, Result<SlotsSeen, BrokerError>> {
        admin::observe(broker, lock).boxed()
    }

    fn find_mark<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        _: u32,
    ) -> BoxFuture<'a, Result<u32, BrokerError>> {
        async move { Ok(admin::observe(broker, lock).await?.highest()) }.boxed()
    }

    fn survey<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
    ) -> BoxFuture<'a, Result<(u32, SlotsSeen), BrokerError>> {
        admin::survey(change, lane).boxed()
    }

    fn waiting<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
    ) -> BoxFuture<'a, Result<Option<u32>, BrokerError>> {
        holders::waiting(broker, lock).boxed()
    }

    fn lost_parts<'a>(
        &'static self,
        _: &'a Inner,
        _: &'a LockName,
        _: SlotWish,
    ) -> BoxFuture<'a, Result<Vec<&'static str>, BrokerError>> {
        // There is nothing but the one queue.
        futures::future::ready(Ok(Vec::new())).boxed()
    }

    fn holders<'a>(
        &'static self,
        broker: &'a Inner,
        lock: &'a LockName,
        seen: &'a SlotsSeen,
        slots: u32,
        limit: usize,
    ) -> BoxFuture<'a, Holders> {
        holders::holders(broker, lock, seen, slots, limit).boxed()
    }

    fn make<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
        _: u32,
    ) -> BoxFuture<'a, Result<Converged, BrokerError>> {
        admin::make(change, lane).boxed()
    }

    fn exists<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
        _: &'a SlotsSeen,
    ) -> BoxFuture<'a, Result<bool, BrokerError>> {
        async move { Ok(lane.look(&change.lock.token_queue()).await?.is_some()) }.boxed()
    }

    fn check<'a>(
        &'static self,
        change: &'a Change,
        lane: &'a mut Lane,
        slots: Option<u32>,
    ) -> BoxFuture<'a, Result<Vec<Fault>, BrokerError>> {
        admin::check(change, lane, slots).boxed()
    }
}

/// The id that a token's body says, which is microseconds since 1970; `None` if it is
/// not one of Lockkeeper's.
fn token_id(body: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(body).ok()?;
    let id: u64 = text.parse().ok()?;
    (id > 0 && id.to_string() == text).then_some(id)
}

/// How often a quorum queue gave this token out before; `None` if the queue doesn't
/// count that. (RabbitMQ 4 leaves the header out the first time.)
fn times_delivered(properties: &BasicProperties, redelivered: bool) -> Option<u64> {
    let headers = properties.headers().as_ref().map(lapin::types::FieldTable::inner);
    match headers.and_then(|headers| headers.get("x-delivery-count")) {
        Some(count) => count_of(count),
        None if redelivered => None,
        None => Some(0),
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

/// Whether a consumer of a token queue takes tokens that are too many, and waits for
/// none.
pub(super) fn is_our_drain(consumer_tag: &str) -> bool {
    consumer_tag == drain::TAG
}

#[cfg(test)]
mod tests {
    use lapin::types::FieldTable;

    use super::*;

    #[test]
    fn only_what_lockkeeper_writes_is_a_token_s_id() {
        assert_eq!(token_id(b"1763756400000000"), Some(1_763_756_400_000_000));
        for body in ["", "0", "007", "+7", "resource", "18446744073709551616", "7\n"] {
            assert_eq!(token_id(body.as_bytes()), None, "{body:?}");
        }
    }

    #[test]
    fn a_queue_that_does_not_count_deliveries_gives_no_fence() {
        let counted = |count| {
            let mut headers = FieldTable::default();
            headers.insert("x-delivery-count".into(), count);
            BasicProperties::default().with_headers(headers)
        };
        let none = BasicProperties::default();
        // 3.10 says 0 and 4.0 nothing the first time, a classic queue never anything.
        assert_eq!(times_delivered(&counted(AMQPValue::LongLongInt(0)), false), Some(0));
        assert_eq!(times_delivered(&none, false), Some(0));
        assert_eq!(times_delivered(&counted(AMQPValue::LongLongInt(7)), true), Some(7));
        assert_eq!(times_delivered(&none, true), None);
    }
}
