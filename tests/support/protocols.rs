//! The table of the protocols: each test that is listed with one of the macros runs
//! once for each row, as `<file>::<protocol>::<test>`. A further protocol is a row
//! here, and an arm wherever a protocol differs as seen from outside.

#![allow(unused_macros, unused_imports, reason = "not every test binary has tests of each kind")]

use std::ops::Deref;
use std::sync::Arc;

use lockkeeper::plan::naming::{LockName, Protocol, QueueType};
use serde_json::json;

use super::rabbitmq::Vhost;

/// Runs these tests with one protocol.
macro_rules! row {
    ($row:ident, $protocol:expr, [$($test:ident)*]) => {
        mod $row {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    Box::pin(super::$test($protocol)).await;
                }
            )*
        }
    };
}

/// Runs tests with every protocol: what is promised of any lock; or with those whose
/// slots are numbered: what is promised of a slot, its queues and its record; or with
/// those that have fencing.
macro_rules! with_protocols {
    (
        $(every { $($every:ident),* $(,)? })?
        $(slots { $($slots:ident),* $(,)? })?
        $(fencing { $($fencing:ident),* $(,)? })?
    ) => {
        use $crate::support::protocols::row;

        row!(exclusive_queue, lockkeeper::plan::naming::Protocol::ExclusiveQueue(
            lockkeeper::plan::naming::Profile::Guideline
        ), [$($($every)*)? $($($slots)*)? $($($fencing)*)?]);
        row!(exclusive_consumer, lockkeeper::plan::naming::Protocol::ExclusiveConsumer,
            [$($($every)*)? $($($slots)*)? $($($fencing)*)?]);
        row!(token, lockkeeper::plan::naming::Protocol::Token(
            lockkeeper::plan::naming::QueueType::Classic
        ), [$($($every)*)?]);
        row!(token_quorum, lockkeeper::plan::naming::Protocol::Token(
            lockkeeper::plan::naming::QueueType::Quorum
        ), [$($($fencing)*)?]);
    };
}

pub(crate) use {row, with_protocols};

/// The lock that most tests are about, by the protocol that is the default.
pub fn name() -> LockName {
    LockName::new("ci.deploy").unwrap()
}

/// The options by which a command line means this protocol, a value after each.
pub fn options(protocol: Protocol) -> &'static [&'static str] {
    match protocol {
        Protocol::ExclusiveQueue(_) => &[],
        Protocol::ExclusiveConsumer => &["--protocol", "ExclusiveConsumer"],
        Protocol::Token(QueueType::Classic) => &["--protocol", "Token"],
        Protocol::Token(QueueType::Quorum) => &["--protocol", "Token", "--queue-type", "Quorum"],
    }
}

/// Where a test's lock is.
pub trait At {
    fn vhost(&self) -> &Vhost;

    fn lock_name(&self) -> LockName {
        name()
    }
}

impl At for Vhost {
    fn vhost(&self) -> &Vhost {
        self
    }
}

impl<T: At> At for Arc<T> {
    fn vhost(&self) -> &Vhost {
        self.as_ref().vhost()
    }

    fn lock_name(&self) -> LockName {
        self.as_ref().lock_name()
    }
}

/// A virtual host of the test's own, for a lock that is held by one protocol.
pub struct Place {
    vhost: Vhost,
    pub protocol: Protocol,
}

impl At for Place {
    fn vhost(&self) -> &Vhost {
        &self.vhost
    }

    fn lock_name(&self) -> LockName {
        name().with_protocol(self.protocol)
    }
}

impl Deref for Place {
    type Target = Vhost;

    fn deref(&self) -> &Vhost {
        &self.vhost
    }
}

impl Place {
    pub async fn create(protocol: Protocol) -> Self {
        Self { vhost: Vhost::create().await, protocol }
    }

    /// The slot that a permit should say it has.
    pub fn slot(&self, slot: u32) -> Option<u32> {
        self.lock_name().has_slots().then_some(slot)
    }

    /// An administrator removes what the holder of the first slot holds by, while
    /// its connection lives.
    pub async fn take_away(&self) {
        match self.protocol {
            // Nobody else can delete a queue that is exclusive, but a policy does.
            Protocol::ExclusiveQueue(_) => {
                let expires = json!({"expires": 1});
                let policy = json!({"pattern": "-B$", "definition": expires, "apply-to": "queues"});
                let path = format!("policies/{}/gone", self.vhost.name);
                self.vhost.management.put(&path, policy).await;
            }
            Protocol::ExclusiveConsumer => {
                self.vhost.delete(&self.lock_name().holder_queue(1)).await;
            }
            Protocol::Token(_) => self.vhost.delete(&self.lock_name().token_queue()).await,
        }
    }
}
