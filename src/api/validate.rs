//! From a raw spec to the values of [`plan`](crate::plan): what the API server's
//! schema can't see is checked here. Reads no Secret and no clock.

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;

use super::conditions::reason;
use super::pressure_queue::{QueueState, RepairPolicy};
use super::{PressureQueue, Semaphore};
use crate::plan::connection::BrokerReference;
use crate::plan::naming::{DEFAULT_PREFIX, LockName, MAX_SLOTS, NameError, QueueName};
use crate::plan::pressure_queue::{QueueWish, WantedState};
use crate::plan::semaphore::SlotWish;

/// Why a spec can't be acted on; only a change of the spec helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The name breaks a naming rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name belongs to another namespace on a connection that all share.
    #[error(
        "on the operator's default connection a name must start with {prefix:?}, which {name:?} does not: leave {field} out, or give the namespace its own connection Secret"
    )]
    NotAllowed {
        /// The refused name.
        name: String,
        /// What it must start with.
        prefix: String,
        /// The field that sets it.
        field: &'static str,
    },
}

impl SpecError {
    /// The condition's reason.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Name(_) => reason::INVALID_NAME,
            Self::NotAllowed { .. } => reason::NAME_NOT_ALLOWED,
        }
    }
}

/// Who may use which names on the operator's default connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultNames {
    /// Only names that start with the namespace and a dot.
    OfTheNamespace,
    /// Any: the operator was told that all namespaces trust each other.
    Any,
}

/// What a Semaphore asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidSemaphore {
    /// Its name on the broker.
    pub lock: LockName,
    /// How many slots.
    pub wish: SlotWish,
    /// The broker that it names; absent means the default connection.
    pub broker: Option<BrokerReference>,
    /// The virtual host, where the resource names one.
    pub vhost: Option<String>,
    /// After how long a holder above the count loses its slot.
    pub revoke_after: Option<Duration>,
    /// Observe only.
    pub suspend: bool,
}

/// What a `PressureQueue` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidQueue {
    /// Its name and prefix in Redis.
    pub queue: QueueName,
    /// Bound and state.
    pub wish: QueueWish,
    /// The Secret of the connection; absent means the default connection.
    pub secret: Option<String>,
    /// The database, where the resource names one.
    pub database: Option<i64>,
    /// Mend what is broken, rather than only say so.
    pub repair: bool,
    /// Observe only.
    pub suspend: bool,
}

/// The lock's name on the broker, checked or not: what a status shows.
#[must_use]
pub fn lock_name(semaphore: &Semaphore) -> String {
    semaphore.spec.lock_name.clone().unwrap_or_else(|| default_name(semaphore))
}

/// The queue's name in Redis, checked or not: what a status shows.
#[must_use]
pub fn queue_name(queue: &PressureQueue) -> String {
    queue.spec.queue_name.clone().unwrap_or_else(|| default_name(queue))
}

fn default_name<K: ResourceExt>(object: &K) -> String {
    format!("{}.{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// Checks a Semaphore's spec.
pub fn semaphore(object: &Semaphore, names: DefaultNames) -> Result<ValidSemaphore, SpecError> {
    let spec = &object.spec;
    let broker = spec.broker();
    let name = lock_name(object);
    check_tenancy(object, &name, broker.is_some(), names, "lockName")?;
    let lock = LockName::new(name)?.with_protocol(spec.naming());
    let lock_delay = duration(&spec.lock_delay);
    // The API server refuses both where there are no records, but for a Token's fencing, which
    // its queue does without any.
    let has_records =
        lock.record_queue(1).is_some() && (spec.fencing || lock_delay > Duration::ZERO);
    Ok(ValidSemaphore {
        lock,
        wish: SlotWish {
            slots: non_negative(spec.slots).min(MAX_SLOTS),
            overshoot: non_negative(spec.resize.overshoot),
            order: spec.resize.order.into(),
            records: has_records.then_some(lock_delay),
        },
        broker,
        vhost: spec.vhost.clone(),
        revoke_after: spec
            .drain
            .as_ref()
            .and_then(|drain| drain.revoke_after.as_deref())
            .filter(|_| spec.naming().has_slots())
            .map(duration),
        suspend: spec.suspend,
    })
}

/// Checks a `PressureQueue`'s spec.
pub fn pressure_queue(
    object: &PressureQueue,
    names: DefaultNames,
) -> Result<ValidQueue, SpecError> {
    let spec = &object.spec;
    let reference = spec.redis_reference.as_ref();
    let secret =
        reference.and_then(|r| r.connection_secret.as_ref()).map(|secret| secret.name.clone());
    let name = queue_name(object);
    check_tenancy(object, &name, secret.is_some(), names, "queueName")?;
    let prefix = reference.map_or(DEFAULT_PREFIX, |r| r.prefix.as_str());
    Ok(ValidQueue {
        queue: QueueName::new(prefix, name)?,
        wish: QueueWish {
            bound: u64::try_from(spec.bound).unwrap_or(0),
            state: match spec.state {
                QueueState::Open => WantedState::Open,
                QueueState::Closed => WantedState::Closed,
            },
        },
        secret,
        database: reference.and_then(|r| r.database).map(i64::from),
        repair: spec.repair_policy == RepairPolicy::Repair,
        suspend: spec.suspend,
    })
}

// The schema refuses negative numbers; an object stored under an older schema
// could still have one.
fn non_negative(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

// The schema refuses whatever can't be read.
fn duration(text: &str) -> Duration {
    text.parse().ok().and_then(|d: SignedDuration| Duration::try_from(d).ok()).unwrap_or_default()
}

/// Everybody shares the default connection, so a name there must show whose it
/// is, or one tenant could take another's lock (hazard K7). CEL rules can't see
/// the namespace, hence here.
fn check_tenancy<K: ResourceExt>(
    object: &K,
    name: &str,
    own_connection: bool,
    names: DefaultNames,
    field: &'static str,
) -> Result<(), SpecError> {
    let prefix = format!("{}.", object.namespace().unwrap_or_default());
    if own_connection || names == DefaultNames::Any || name.starts_with(&prefix) {
        return Ok(());
    }
    Err(SpecError::NotAllowed { name: name.to_owned(), prefix, field })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::naming::{Profile, Protocol, QueueType};

    fn semaphore_of(yaml: &str) -> Semaphore {
        serde_yaml::from_str(&format!(
            "apiVersion: lockkeeper.dev/v1alpha1\nkind: Semaphore\nmetadata: {{name: deploy, namespace: ci}}\nspec: {yaml}"
        ))
        .unwrap()
    }

    #[test]
    fn a_name_is_namespace_and_name_unless_said_otherwise() {
        let valid = semaphore(&semaphore_of("{}"), DefaultNames::OfTheNamespace).unwrap();
        assert_eq!(valid.lock.as_str(), "ci.deploy");
        assert_eq!(valid.wish, SlotWish::new(1));
    }

    #[test]
    fn slots_have_records_with_fencing_and_with_a_lock_delay_and_only_in_profile_guideline() {
        let records = |yaml| {
            let valid = semaphore(&semaphore_of(yaml), DefaultNames::OfTheNamespace).unwrap();
            valid.wish.records.map(|delay| delay.as_millis())
        };
        assert_eq!(records("{}"), None);
        assert_eq!(records("{lockDelay: 0s}"), None);
        assert_eq!(records("{fencing: true}"), Some(0));
        assert_eq!(records("{lockDelay: 15s}"), Some(15_000));
        assert_eq!(records("{fencing: true, lockDelay: 1h2m3s4ms}"), Some(3_723_004));
        assert_eq!(records("{fencing: true, profile: AmqpLocksPython}"), None);
        assert_eq!(records("{fencing: true, protocol: ExclusiveConsumer}"), Some(0));
        let token = "{fencing: true, protocol: Token, token: {queueType: Quorum}}";
        assert_eq!(records(token), None);
    }

    #[test]
    fn the_lock_has_the_protocol_that_the_spec_says() {
        let protocol = |yaml| {
            let valid = semaphore(&semaphore_of(yaml), DefaultNames::OfTheNamespace).unwrap();
            valid.lock.protocol()
        };
        assert_eq!(protocol("{}"), Protocol::ExclusiveQueue(Profile::Guideline));
        let python = Protocol::ExclusiveQueue(Profile::AmqpLocksPython);
        assert_eq!(protocol("{profile: AmqpLocksPython}"), python);
        assert_eq!(protocol("{protocol: ExclusiveConsumer}"), Protocol::ExclusiveConsumer);
        let classic = Protocol::Token(QueueType::Classic);
        assert_eq!(protocol("{protocol: Token}"), classic);
        assert_eq!(protocol("{protocol: Token, token: {}}"), classic);
        let quorum = protocol("{protocol: Token, token: {queueType: Quorum}}");
        assert_eq!(quorum, Protocol::Token(QueueType::Quorum));
    }

    #[test]
    fn another_namespaces_name_on_the_default_connection_is_refused() {
        let object = semaphore_of("{lockName: prod.deploy}");
        let refused = semaphore(&object, DefaultNames::OfTheNamespace).unwrap_err();
        assert_eq!(refused.reason(), reason::NAME_NOT_ALLOWED);
        assert!(semaphore(&object, DefaultNames::Any).is_ok());
    }

    #[test]
    fn any_name_is_allowed_on_a_connection_of_the_namespaces_own() {
        let object = semaphore_of(
            "{lockName: prod.deploy, rabbitmqClusterReference: {connectionSecret: {name: rabbit}}}",
        );
        let valid = semaphore(&object, DefaultNames::OfTheNamespace).unwrap();
        let named = valid.broker.map(|broker| (broker.is_cluster, broker.name));
        assert_eq!(named, Some((false, "rabbit".to_owned())));
    }

    #[test]
    fn a_default_name_that_breaks_a_rule_is_refused_with_the_rule() {
        let mut object = semaphore_of("{}");
        object.metadata.name = Some("x.semaphore".to_owned());
        let refused = semaphore(&object, DefaultNames::OfTheNamespace).unwrap_err();
        assert!(refused.to_string().contains(".semaphore"), "{refused}");
        object.metadata.name = Some("y".repeat(250));
        let refused = semaphore(&object, DefaultNames::OfTheNamespace).unwrap_err();
        assert!(refused.to_string().contains("200"), "{refused}");
    }
}
