//! Which refusals and failures become which error.

use std::io;

use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};

use super::*;

fn refused(kind: impl Into<AMQPErrorKind>, text: &str) -> LapinError {
    ErrorKind::ProtocolError(AMQPError::new(kind.into(), text.into())).into()
}

#[test]
fn a_queue_whose_node_is_down_is_distinguished_from_a_deleted_one() {
    let down = refused(
        AMQPSoftError::NOTFOUND,
        "NOT_FOUND - home node 'rabbit@b' of durable queue 'jobs-2-A' in vhost '/' is down or inaccessible",
    );
    assert_eq!(BrokerError::operating(&down, "jobs-2-A").reason(), "BrokerNodeDown");
    let gone = refused(AMQPSoftError::NOTFOUND, "NOT_FOUND - no queue 'jobs-2-A' in vhost '/'");
    assert_eq!(BrokerError::operating(&gone, "jobs-2-A").reason(), "BrokerProtocolError");
}

#[test]
fn refused_transient_queues_are_distinguished_from_a_lost_connection() {
    // The message of 4.0.5 where the feature is not permitted.
    let text = "INTERNAL_ERROR - Feature `transient_nonexcl_queues` is deprecated.\nIts use is not permitted per the configuration";
    let refused = refused(AMQPHardError::INTERNALERROR, text);
    let error = BrokerError::operating(&refused, "jobs-A-1");
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
    assert_eq!(BrokerError::connecting(&limit, "h:1", "u", "x").reason(), "QuotaExceeded");
    let missing = refused(AMQPHardError::NOTALLOWED, "NOT_ALLOWED - vhost x not found");
    assert_eq!(BrokerError::connecting(&missing, "h:1", "u", "x").reason(), "VhostNotFound");
}

#[test]
fn a_limit_of_this_process_is_not_taken_for_an_unreachable_broker() {
    let full = LapinError::from(io::Error::from_raw_os_error(nix::libc::EMFILE));
    let error = BrokerError::connecting(&full, "h:1", "u", "x");
    assert_eq!(error.reason(), "ProcessLimitReached");
    assert!(error.to_string().contains("too many open files"), "{error}");
}

#[test]
fn a_text_from_the_broker_can_not_carry_control_characters() {
    let nasty = refused(AMQPSoftError::PRECONDITIONFAILED, "a\u{1b}[31m\nb");
    let shown = BrokerError::operating(&nasty, "q\n").to_string();
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
}

#[test]
fn an_operation_that_finds_its_connection_closed_does_not_hide_the_cause() {
    for kind in [
        ErrorKind::InvalidConnectionState(lapin::ConnectionState::Error),
        ErrorKind::InvalidChannelState(lapin::ChannelState::Error, "basic.publish"),
    ] {
        let error = BrokerError::operating(&kind.into(), "jobs-1-A");
        assert!(error.is_closed_before(), "{error}");
    }
}
