//! Which refusals and failures of the broker become which error.

use std::io;

use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::{Error as LapinError, ErrorKind};
use lockkeeper_amqp::error::AmqpError;
use lockkeeper_amqp::refusal::{is_deleted_meanwhile, is_in_use};

use super::*;

fn refused(kind: impl Into<AMQPErrorKind>, text: &str) -> LapinError {
    ErrorKind::ProtocolError(AMQPError::new(kind.into(), text.into())).into()
}

fn operating(error: &LapinError, queue: &str) -> BrokerError {
    AmqpError::operating(error, queue).into()
}

fn connecting(error: &LapinError, endpoint: &str, user: &str, vhost: &str) -> BrokerError {
    AmqpError::connecting(error, endpoint, user, vhost).into()
}

#[test]
fn a_queue_whose_node_is_down_is_distinguished_from_a_deleted_one() {
    let down = refused(
        AMQPSoftError::NOTFOUND,
        "NOT_FOUND - home node 'rabbit@b' of durable queue 'jobs-2-A' in vhost '/' is down or inaccessible",
    );
    assert_eq!(operating(&down, "jobs-2-A").reason(), "BrokerNodeDown");
    let gone = refused(AMQPSoftError::NOTFOUND, "NOT_FOUND - no queue 'jobs-2-A' in vhost '/'");
    assert_eq!(operating(&gone, "jobs-2-A").reason(), "BrokerProtocolError");
}

#[test]
fn refused_transient_queues_are_distinguished_from_a_lost_connection() {
    // The message of 4.0.5 where the feature is not permitted.
    let text = "INTERNAL_ERROR - Feature `transient_nonexcl_queues` is deprecated.\nIts use is not permitted per the configuration";
    let refused = refused(AMQPHardError::INTERNALERROR, text);
    let error = operating(&refused, "jobs-A-1");
    assert_eq!(error.reason(), "TransientQueuesRefused");
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().contains("AmqpLocksPython"), "{error}");
}

#[test]
fn a_limit_is_not_taken_for_a_missing_virtual_host() {
    let limit = refused(
        AMQPHardError::NOTALLOWED,
        "NOT_ALLOWED - access to vhost 'x' refused for user 'u': connection limit (1) is reached",
    );
    assert_eq!(connecting(&limit, "h:1", "u", "x").reason(), "QuotaExceeded");
    let missing = refused(AMQPHardError::NOTALLOWED, "NOT_ALLOWED - vhost x not found");
    assert_eq!(connecting(&missing, "h:1", "u", "x").reason(), "VhostNotFound");
}

#[test]
fn a_limit_of_this_process_is_not_taken_for_an_unreachable_broker() {
    let full = LapinError::from(io::Error::from_raw_os_error(nix::libc::EMFILE));
    let error = connecting(&full, "h:1", "u", "x");
    assert_eq!(error.reason(), "ProcessLimitReached");
    assert!(error.to_string().contains("too many open files"), "{error}");
}

#[test]
fn a_text_from_the_broker_can_not_carry_control_characters() {
    let nasty = refused(AMQPSoftError::PRECONDITIONFAILED, "a\u{1b}[31m\nb");
    let shown = operating(&nasty, "q\n").to_string();
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
}

#[test]
fn a_name_that_contains_words_of_the_broker_does_not_change_the_reason() {
    let reason =
        |kind: AMQPErrorKind, text: &str| operating(&refused(kind, text), "ci.x-1-A").reason();
    let wrong = AMQPSoftError::PRECONDITIONFAILED;
    // The texts of 3.10.8 and 4.0.5.
    for name in ["ratelimit", "limit (1) is reached", "transient_nonexcl_queues", "home node"] {
        let differs = format!(
            "PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{name}-1-A' in vhost '{name}': received 'true' but current is 'false'"
        );
        assert_eq!(reason(wrong.clone().into(), &differs), "IncompatibleQueue", "{name}");
        let limit = format!(
            "PRECONDITION_FAILED - cannot declare queue '{name}-1-A': queue limit in vhost '{name}' (4) is reached"
        );
        assert_eq!(reason(wrong.clone().into(), &limit), "QuotaExceeded", "{name}");
        let gone = format!("NOT_FOUND - no queue '{name} is down or inaccessible' in vhost '/'");
        assert_eq!(reason(AMQPSoftError::NOTFOUND.into(), &gone), "BrokerProtocolError");
        let refused = format!(
            "ACCESS_REFUSED - access to queue '{name} in exclusive use' in vhost '/' refused for user 'u'"
        );
        let refused = AmqpError::AccessRefused { why: refused };
        assert!(!is_in_use(&refused), "{name}");
    }
    let long = "n".repeat(250);
    let cut = format!("PRECONDITION_FAILED - cannot declare queue '{long}");
    let cut = format!("{}...", &cut[..252]);
    assert_eq!(reason(wrong.into(), &cut), "QuotaExceeded", "a text that was cut");
    let stopped = "NOT_FOUND - queue 'q' in vhost '/' process is stopped by supervisor";
    let timeout =
        "NOT_FOUND - failed to perform operation on queue 'q' in vhost '/' due to timeout";
    for text in [stopped, timeout] {
        assert_eq!(reason(AMQPSoftError::NOTFOUND.into(), text), "BrokerNodeDown");
    }
    let why = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use".to_owned();
    assert!(is_in_use(&AmqpError::AccessRefused { why }));
    let channels = "NOT_ALLOWED - number of channels opened for user 'u' has reached the maximum allowed user limit of (10)";
    assert_eq!(reason(AMQPHardError::NOTALLOWED.into(), channels), "QuotaExceeded");
    let forced = "CONNECTION_FORCED - transient_nonexcl_queues";
    assert_eq!(reason(AMQPHardError::CONNECTIONFORCED.into(), forced), "BrokerConnectionLost");
    // The text of 4.3.
    let deleted = "RESOURCE_ERROR - failed to deliver message: {not_found,\n                               {resource,<<\"t\">>,queue,<<\"x-2-B\">>}}";
    let deleted = refused(AMQPHardError::RESOURCEERROR, deleted);
    assert!(is_deleted_meanwhile(&AmqpError::operating(&deleted, "x-2-B")));
    let other = "RESOURCE_ERROR - failed to deliver message: {timeout,{resource,<<\"t\">>,queue,<<\"{not_found,\">>}}";
    let other = AmqpError::operating(&refused(AMQPHardError::RESOURCEERROR, other), "x");
    assert!(!is_deleted_meanwhile(&other));
    assert_eq!(BrokerError::from(other).reason(), "BrokerConnectionLost");
    for (text, expected) in [
        ("NOT_ALLOWED - vhost x-limit not found", "VhostNotFound"),
        ("NOT_ALLOWED - access to vhost 'not found' refused for user 'limit'", "AccessRefused"),
        (
            "NOT_ALLOWED - Connection refused for user 'u': user connection limit (3) is reached",
            "QuotaExceeded",
        ),
    ] {
        let error = connecting(&refused(AMQPHardError::NOTALLOWED, text), "h:1", "u", "x-limit");
        assert_eq!(error.reason(), expected, "{text}");
    }
}
