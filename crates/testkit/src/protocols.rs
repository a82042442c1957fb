//! The table of the protocols: each test that is listed with one of the macros runs once
//! for each row, as `<file>::<protocol>::<test>`. A new protocol is a row here, and an
//! arm wherever its visible behavior differs.

use std::ops::Deref;
use std::sync::Arc;

use lockkeeper_plan::naming::{LockName, Protocol, QueueType};
use serde_json::json;

use super::rabbitmq::Vhost;

/// Runs these tests with one protocol.
#[doc(hidden)]
#[macro_export]
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

/// Runs tests with every protocol, for properties of any lock; with those that number
/// their slots, for properties of a slot, its queues and its record; with those that
/// support fencing; or with a true mutex, for tests of one slot.
#[macro_export]
macro_rules! with_protocols {
    (
        $(every { $($every:ident),* $(,)? })?
        $(slots { $($slots:ident),* $(,)? })?
        $(fencing { $($fencing:ident),* $(,)? })?
        $(mutex { $($mutex:ident),* $(,)? })?
    ) => {
        $crate::row!(exclusive_queue, lockkeeper_plan::naming::Protocol::ExclusiveQueue(
            lockkeeper_plan::naming::Profile::Guideline
        ), [$($($every)*)? $($($slots)*)? $($($fencing)*)?]);
        $crate::row!(exclusive_consumer, lockkeeper_plan::naming::Protocol::ExclusiveConsumer,
            [$($($every)*)? $($($slots)*)? $($($fencing)*)?]);
        $crate::row!(token, lockkeeper_plan::naming::Protocol::Token(
            lockkeeper_plan::naming::QueueType::Classic
        ), [$($($every)*)?]);
        $crate::row!(token_quorum, lockkeeper_plan::naming::Protocol::Token(
            lockkeeper_plan::naming::QueueType::Quorum
        ), [$($($fencing)*)?]);
        $crate::row!(true_mutex, lockkeeper_plan::naming::Protocol::TrueMutex, [$($($mutex)*)?]);
    };
}

pub use crate::with_protocols;

/// The lock of most tests, with the default protocol.
pub fn name() -> LockName {
    LockName::new("ci.deploy").unwrap()
}

/// The command line options for this protocol, each followed by its value.
pub fn options(protocol: Protocol) -> &'static [&'static str] {
    match protocol {
        Protocol::ExclusiveQueue(_) => &[],
        Protocol::ExclusiveConsumer => &["--protocol", "ExclusiveConsumer"],
        Protocol::Token(QueueType::Classic) => &["--protocol", "Token"],
        Protocol::Token(QueueType::Quorum) => &["--protocol", "Token", "--queue-type", "Quorum"],
        Protocol::TrueMutex => panic!("a mutex is named by an option of its own"),
    }
}

/// The location of a test's lock.
pub trait At {
    /// Returns its virtual host.
    fn vhost(&self) -> &Vhost;

    /// Returns its name, with its protocol.
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

/// A virtual host for one test, with a lock of one protocol.
pub struct TestLock {
    vhost: Vhost,
    /// Its protocol.
    pub protocol: Protocol,
}

impl At for TestLock {
    fn vhost(&self) -> &Vhost {
        &self.vhost
    }

    fn lock_name(&self) -> LockName {
        name().with_protocol(self.protocol)
    }
}

impl Deref for TestLock {
    type Target = Vhost;

    fn deref(&self) -> &Vhost {
        &self.vhost
    }
}

impl TestLock {
    /// Creates a virtual host for a lock of this protocol.
    pub async fn create(protocol: Protocol) -> Self {
        Self { vhost: Vhost::create().await, protocol }
    }

    /// Returns the slot that a permit should report.
    pub fn slot(&self, slot: u32) -> Option<u32> {
        self.lock_name().has_slots().then_some(slot)
    }

    /// Returns the queue on which the lock's clients wait.
    pub fn wait_queue(&self) -> String {
        let name = self.lock_name();
        name.wait_queue().unwrap_or_else(|| name.token_queue())
    }

    /// Removes the queue that the holder of the first slot holds, as an administrator,
    /// while its connection stays open.
    pub async fn take_away(&self) {
        match self.protocol {
            // No other client can delete an exclusive queue, but a policy can.
            Protocol::ExclusiveQueue(_) | Protocol::TrueMutex => {
                let expires = json!({"expires": 1});
                let policy =
                    json!({"pattern": "(-B|deploy)$", "definition": expires, "apply-to": "queues"});
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
