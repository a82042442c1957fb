//! Which error is taken for the consequence of another one.

use super::*;

#[test]
fn an_operation_that_finds_its_connection_closed_does_not_hide_the_cause() {
    for kind in [
        ErrorKind::InvalidConnectionState(lapin::ConnectionState::Error),
        ErrorKind::InvalidChannelState(lapin::ChannelState::Error, "basic.publish"),
    ] {
        let error = AmqpError::operating(&kind.into(), "jobs-1-A");
        assert!(error.is_closed_before(), "{error}");
    }
}
