//! Translates a spec into the values of [`plan`](lockkeeper_plan), with the checks that the
//! API server's schema can't express. Reads no Secret and no clock.

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use lockkeeper_plan::connection::BrokerReference;
use lockkeeper_plan::naming::{DEFAULT_PREFIX, LockName, MAX_SLOTS, NameError, QueueName};
use lockkeeper_plan::pressure_queue::{DesiredQueue, DesiredState};
use lockkeeper_plan::semaphore::DesiredSlots;

use super::conditions::reason;
use super::pressure_queue::{QueueState, RepairPolicy};
use super::{PressureQueue, Semaphore};

/// Error of an unusable spec. Only a change of the spec resolves it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The name violates a naming rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// On a shared connection, the name belongs to another namespace.
    #[error(
        "on the operator's default connection a name must start with {prefix:?}, which {name:?} does not: leave {field} out, or give the namespace its own connection Secret"
    )]
    NotAllowed {
        /// The rejected name.
        name: String,
        /// Required prefix.
        prefix: String,
        /// The field that sets it.
        field: &'static str,
    },
    /// The place is set by the resource, which the operator does not allow on a shared
    /// connection.
    #[error(
        "on the operator's default connection {} can't be set: leave it out, or give the namespace its own connection Secret",
        .0.field()
    )]
    PlaceNotAllowed(Place),
}

/// Part of a server that a resource may select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The virtual host of a broker.
    Vhost,
    /// The database of a Redis server.
    Database,
}

impl Place {
    fn field(self) -> &'static str {
        match self {
            Self::Vhost => "vhost",
            Self::Database => "redisReference.database",
        }
    }
}

impl SpecError {
    /// The condition's reason.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Name(_) => reason::INVALID_NAME,
            Self::NotAllowed { .. } => reason::NAME_NOT_ALLOWED,
            Self::PlaceNotAllowed(Place::Vhost) => reason::VHOST_NOT_ALLOWED,
            Self::PlaceNotAllowed(Place::Database) => reason::DATABASE_NOT_ALLOWED,
        }
    }
}

/// What resources may select on the operator's default connections, which all namespaces
/// share. The default allows nothing that belongs to another namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultRules {
    /// Names that don't start with the namespace and a dot.
    pub any_name: bool,
    /// `spec.vhost` and `spec.redisReference.database`.
    pub any_place: bool,
}

impl DefaultRules {
    /// Allows everything. For the command line, which does not know the operator's
    /// settings.
    pub const ANYTHING: Self = Self { any_name: true, any_place: true };
}

/// A validated Semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidSemaphore {
    /// Its name on the broker.
    pub lock: LockName,
    /// Desired slots.
    pub desired: DesiredSlots,
    /// Broker, or `None` for the default connection.
    pub broker: Option<BrokerReference>,
    /// Virtual host, if the resource specifies one.
    pub vhost: Option<String>,
    /// Time after which a draining holder loses its slot.
    pub revoke_after: Option<Duration>,
    /// Observe only.
    pub suspend: bool,
}

/// A validated `PressureQueue`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidQueue {
    /// Its name and prefix in Redis.
    pub queue: QueueName,
    /// Desired bound and state.
    pub desired: DesiredQueue,
    /// Secret of the connection, or `None` for the default connection.
    pub secret: Option<String>,
    /// Database, if the resource specifies one.
    pub database: Option<i64>,
    /// Repair damage instead of only reporting it.
    pub repair: bool,
    /// Observe only.
    pub suspend: bool,
}

/// Returns the lock's name on the broker without validating it, for the status.
#[must_use]
pub fn lock_name(semaphore: &Semaphore) -> String {
    semaphore.spec.lock_name.clone().unwrap_or_else(|| default_name(semaphore))
}

/// Returns the queue's name in Redis without validating it, for the status.
#[must_use]
pub fn queue_name(queue: &PressureQueue) -> String {
    queue.spec.queue_name.clone().unwrap_or_else(|| default_name(queue))
}

fn default_name<K: ResourceExt>(object: &K) -> String {
    format!("{}.{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// Validates a Semaphore's spec.
///
/// # Errors
///
/// [`SpecError`]: a field is invalid, or not allowed on a default connection.
pub fn semaphore(object: &Semaphore, rules: DefaultRules) -> Result<ValidSemaphore, SpecError> {
    let spec = &object.spec;
    let broker = spec.broker();
    let name = lock_name(object);
    if broker.is_none() {
        check_name(object, &name, rules, "lockName")?;
        check_place(spec.vhost.is_some(), rules, Place::Vhost)?;
    }
    let lock = LockName::new(name)?.with_protocol(spec.naming());
    let lock_delay = duration(&spec.lock_delay);
    // The API server rejects both if the lock has no records, except fencing with
    // protocol Token, which needs no records.
    let has_records =
        lock.record_queue(1).is_some() && (spec.fencing || lock_delay > Duration::ZERO);
    Ok(ValidSemaphore {
        lock,
        desired: DesiredSlots {
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

/// Validates a `PressureQueue`'s spec.
///
/// # Errors
///
/// [`SpecError`]: a field is invalid, or not allowed on a default connection.
pub fn pressure_queue(
    object: &PressureQueue,
    rules: DefaultRules,
) -> Result<ValidQueue, SpecError> {
    let spec = &object.spec;
    let reference = spec.redis_reference.as_ref();
    let secret =
        reference.and_then(|r| r.connection_secret.as_ref()).map(|secret| secret.name.clone());
    let name = queue_name(object);
    if secret.is_none() {
        check_name(object, &name, rules, "queueName")?;
        let has_database = reference.is_some_and(|reference| reference.database.is_some());
        check_place(has_database, rules, Place::Database)?;
    }
    let prefix = reference.map_or(DEFAULT_PREFIX, |r| r.prefix.as_str());
    Ok(ValidQueue {
        queue: QueueName::new(prefix, name)?,
        desired: DesiredQueue {
            bound: u64::try_from(spec.bound).unwrap_or(0),
            state: match spec.state {
                QueueState::Open => DesiredState::Open,
                QueueState::Closed => DesiredState::Closed,
            },
        },
        secret,
        database: reference.and_then(|r| r.database).map(i64::from),
        repair: spec.repair_policy == RepairPolicy::Repair,
        suspend: spec.suspend,
    })
}

// The schema rejects negative numbers, but an object stored under an older schema may
// still have one.
fn non_negative(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

// The schema rejects anything that does not parse.
fn duration(text: &str) -> Duration {
    text.parse().ok().and_then(|d: SignedDuration| Duration::try_from(d).ok()).unwrap_or_default()
}

/// All namespaces share the default connection, so a name must show its namespace.
/// Otherwise one tenant could take another's lock (hazard K7). CEL rules can't see the
/// namespace, so this is checked here.
fn check_name<K: ResourceExt>(
    object: &K,
    name: &str,
    rules: DefaultRules,
    field: &'static str,
) -> Result<(), SpecError> {
    if rules.any_name || is_own_name(object, name) {
        return Ok(());
    }
    Err(SpecError::NotAllowed { name: name.to_owned(), prefix: own_prefix(object), field })
}

/// Returns whether the name starts with the object's namespace and a dot.
#[must_use]
pub fn is_own_name<K: ResourceExt>(object: &K, name: &str) -> bool {
    name.starts_with(&own_prefix(object))
}

fn own_prefix<K: ResourceExt>(object: &K) -> String {
    format!("{}.", object.namespace().unwrap_or_default())
}

/// The default connection's user may have access to virtual hosts or databases that the
/// namespaces must not use (hazard K25).
fn check_place(is_set: bool, rules: DefaultRules, place: Place) -> Result<(), SpecError> {
    if is_set && !rules.any_place { Err(SpecError::PlaceNotAllowed(place)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use lockkeeper_plan::naming::{Profile, Protocol, QueueType};

    use super::*;

    fn semaphore_of(yaml: &str) -> Semaphore {
        serde_yaml::from_str(&format!(
            "apiVersion: lockkeeper.dev/v1alpha1\nkind: Semaphore\nmetadata: {{name: deploy, namespace: ci}}\nspec: {yaml}"
        ))
        .unwrap()
    }

    #[test]
    fn a_name_defaults_to_namespace_and_name() {
        let valid = semaphore(&semaphore_of("{}"), DefaultRules::default()).unwrap();
        assert_eq!(valid.lock.as_str(), "ci.deploy");
        assert_eq!(valid.desired, DesiredSlots::new(1));
    }

    #[test]
    fn slots_have_records_with_fencing_and_with_a_lock_delay_and_only_in_profile_guideline() {
        let records = |yaml| {
            let valid = semaphore(&semaphore_of(yaml), DefaultRules::default()).unwrap();
            valid.desired.records.map(|delay| delay.as_millis())
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
    fn the_lock_has_the_protocol_of_the_spec() {
        let protocol = |yaml| {
            let valid = semaphore(&semaphore_of(yaml), DefaultRules::default()).unwrap();
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
        let refused = semaphore(&object, DefaultRules::default()).unwrap_err();
        assert_eq!(refused.reason(), reason::NAME_NOT_ALLOWED);
        assert!(semaphore(&object, DefaultRules::ANYTHING).is_ok());
    }

    #[test]
    fn a_vhost_or_database_on_the_default_connection_is_refused() {
        let object = semaphore_of("{vhost: theirs}");
        let any_name = DefaultRules { any_name: true, ..DefaultRules::default() };
        let refused = semaphore(&object, any_name).unwrap_err();
        assert_eq!(refused.reason(), reason::VHOST_NOT_ALLOWED);
        assert!(refused.to_string().contains("vhost can't be set"), "{refused}");
        let any_place = DefaultRules { any_place: true, ..DefaultRules::default() };
        assert!(semaphore(&object, any_place).is_ok());
        let own = "rabbitmqClusterReference: {connectionSecret: {name: s}}";
        let object = semaphore_of(&format!("{{vhost: mine, {own}}}"));
        assert!(semaphore(&object, DefaultRules::default()).is_ok());

        let queue = |reference: &str| -> PressureQueue {
            let text = format!(
                "{{metadata: {{name: q, namespace: ci}}, spec: {{redisReference: {{{reference}}}}}}}"
            );
            serde_yaml::from_str(&text).unwrap()
        };
        let refused = pressure_queue(&queue("database: 3"), any_name).unwrap_err();
        assert_eq!(refused.reason(), reason::DATABASE_NOT_ALLOWED);
        assert!(pressure_queue(&queue("database: 3"), any_place).is_ok());
        assert!(pressure_queue(&queue("prefix: p"), DefaultRules::default()).is_ok());
        let own = queue("database: 3, connectionSecret: {name: s}");
        assert!(pressure_queue(&own, DefaultRules::default()).is_ok());
    }

    #[test]
    fn any_name_is_allowed_on_a_connection_of_the_namespaces_own() {
        let object = semaphore_of(
            "{lockName: prod.deploy, rabbitmqClusterReference: {connectionSecret: {name: rabbit}}}",
        );
        let valid = semaphore(&object, DefaultRules::default()).unwrap();
        let named = valid.broker.map(|broker| (broker.is_cluster, broker.name));
        assert_eq!(named, Some((false, "rabbit".to_owned())));
    }

    #[test]
    fn a_default_name_that_breaks_a_rule_is_refused_with_the_rule() {
        let mut object = semaphore_of("{}");
        object.metadata.name = Some("x.semaphore".to_owned());
        let refused = semaphore(&object, DefaultRules::default()).unwrap_err();
        assert!(refused.to_string().contains(".semaphore"), "{refused}");
        object.metadata.name = Some("y".repeat(250));
        let refused = semaphore(&object, DefaultRules::default()).unwrap_err();
        assert!(refused.to_string().contains("200"), "{refused}");
    }
}
