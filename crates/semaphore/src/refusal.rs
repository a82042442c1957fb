//! Classifies the broker's refusals where several share a reply code and only the text
//! differs. Texts contain names with arbitrary words. Therefore only the beginning of a
//! text before its first name, or its end after its last one, is compared. RabbitMQ
//! truncates a text after 252 bytes, which keeps the beginning.

use crate::error::BrokerError;

/// Whether a 404 is about an existing queue, which returns with its node or process. The
/// text for a missing queue is "no queue 'x' in vhost '/'".
pub fn is_node_down(text: &str) -> bool {
    [
        // "home node 'rabbit@b' of durable queue 'x' in vhost '/' is down or inaccessible"
        "NOT_FOUND - home node '",
        // "queue 'x' in vhost '/' process is stopped by supervisor"
        "NOT_FOUND - queue '",
        // "failed to perform operation on queue 'x' in vhost '/' due to timeout"
        "NOT_FOUND - failed to perform operation on queue '",
    ]
    .iter()
    .any(|beginning| text.starts_with(beginning))
}

/// Whether this refusal of a queue whose node is down names the node, as with Mnesia.
pub fn names_node(text: &str) -> bool {
    text.starts_with("NOT_FOUND - home node '")
}

/// Whether a 530 on an open connection is Qpid Broker-J's refusal of a queue that is
/// exclusive to another connection. RabbitMQ answers 405.
pub fn is_exclusive_elsewhere(text: &str) -> bool {
    // "Queue 'x' is exclusive, but not created on this Connection."
    // RabbitMQ's texts begin with "NOT_ALLOWED - ".
    text.starts_with("Queue '")
}

/// Whether a 406 or 530 means that a limit was reached.
pub fn is_limit(text: &str) -> bool {
    // "cannot declare queue 'x': queue limit in vhost '/' (4) is reached",
    // "access to vhost '/' refused for user 'u': connection limit (1) is reached"
    let (_, end) = text.rsplit_once('(').unwrap_or_default();
    let number = end.strip_suffix(") is reached").unwrap_or_default();
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number
        || is_queue_limit(text)
        // "number of channels opened for user 'u' has reached the maximum allowed user
        // limit of (10)"
        || text.starts_with("NOT_ALLOWED - number of channels opened ")
}

/// Whether the text of a reached limit is about the number of queues.
pub fn is_queue_limit(text: &str) -> bool {
    text.starts_with("PRECONDITION_FAILED - cannot declare queue '")
}

/// Whether a 403 means that another client is the queue's exclusive consumer. Otherwise
/// the user lacks a permission.
pub fn is_in_use(error: &BrokerError) -> bool {
    // "queue 'x' in vhost '/' in exclusive use", "access to queue 'x' in vhost '/' refused
    // for user 'u'"
    matches!(error, BrokerError::AccessRefused { why } if why.starts_with("ACCESS_REFUSED - queue '"))
}

/// Whether the broker closed the connection because a queue was deleted while a message to it
/// was being routed. RabbitMQ has done so since 4.2, where a publish reads two tables of queues
/// (rabbitmq-server#14570). The message was not stored.
pub fn is_deleted_meanwhile(error: &BrokerError) -> bool {
    // "failed to deliver message: {not_found,\n {resource,<<"vhost">>,queue,<<"x">>}}"
    let beginning = "RESOURCE_ERROR - failed to deliver message: {not_found,";
    matches!(error, BrokerError::ConnectionLost { why } if why.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};
    use lapin::{Error as LapinError, ErrorKind};

    use super::*;

    fn refused(kind: impl Into<AMQPErrorKind>, text: &str) -> LapinError {
        ErrorKind::ProtocolError(AMQPError::new(kind.into(), text.into())).into()
    }

    #[test]
    fn a_name_that_contains_words_of_the_broker_does_not_change_the_reason() {
        let reason = |kind: AMQPErrorKind, text: &str| {
            BrokerError::operating(&refused(kind, text), "ci.x-1-A").reason()
        };
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
            let gone =
                format!("NOT_FOUND - no queue '{name} is down or inaccessible' in vhost '/'");
            assert_eq!(reason(AMQPSoftError::NOTFOUND.into(), &gone), "BrokerProtocolError");
            let refused = format!(
                "ACCESS_REFUSED - access to queue '{name} in exclusive use' in vhost '/' refused for user 'u'"
            );
            let refused = BrokerError::AccessRefused { why: refused };
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
        assert!(is_in_use(&BrokerError::AccessRefused { why }));
        let channels = "NOT_ALLOWED - number of channels opened for user 'u' has reached the maximum allowed user limit of (10)";
        assert_eq!(reason(AMQPHardError::NOTALLOWED.into(), channels), "QuotaExceeded");
        let forced = "CONNECTION_FORCED - transient_nonexcl_queues";
        assert_eq!(reason(AMQPHardError::CONNECTIONFORCED.into(), forced), "BrokerConnectionLost");
        // The text of 4.3.
        let deleted = "RESOURCE_ERROR - failed to deliver message: {not_found,\n                               {resource,<<\"t\">>,queue,<<\"x-2-B\">>}}";
        let deleted = refused(AMQPHardError::RESOURCEERROR, deleted);
        assert!(is_deleted_meanwhile(&BrokerError::operating(&deleted, "x-2-B")));
        let other = "RESOURCE_ERROR - failed to deliver message: {timeout,{resource,<<\"t\">>,queue,<<\"{not_found,\">>}}";
        let other = BrokerError::operating(&refused(AMQPHardError::RESOURCEERROR, other), "x");
        assert!(!is_deleted_meanwhile(&other) && other.reason() == "BrokerConnectionLost");
        for (text, expected) in [
            ("NOT_ALLOWED - vhost x-limit not found", "VhostNotFound"),
            ("NOT_ALLOWED - access to vhost 'not found' refused for user 'limit'", "AccessRefused"),
            (
                "NOT_ALLOWED - Connection refused for user 'u': user connection limit (3) is reached",
                "QuotaExceeded",
            ),
        ] {
            let error = BrokerError::connecting(
                &refused(AMQPHardError::NOTALLOWED, text),
                "h:1",
                "u",
                "x-limit",
            );
            assert_eq!(error.reason(), expected, "{text}");
        }
    }
}
