//! Classifies the broker's refusals where several share a reply code and only the text
//! differs. Texts contain names with arbitrary words. Therefore only the beginning of a
//! text before its first name, or its end after its last one, is compared. RabbitMQ
//! truncates a text after 252 bytes, which keeps the beginning.

use crate::error::AmqpError;

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
pub fn is_in_use(error: &AmqpError) -> bool {
    // "queue 'x' in vhost '/' in exclusive use", "access to queue 'x' in vhost '/' refused
    // for user 'u'"
    matches!(error, AmqpError::AccessRefused { why } if why.starts_with("ACCESS_REFUSED - queue '"))
}

/// Whether the broker closed the connection because a queue was deleted while a message to it
/// was being routed. RabbitMQ has done so since 4.2, where a publish reads two tables of queues
/// (rabbitmq-server#14570). The message was not stored.
pub fn is_deleted_meanwhile(error: &AmqpError) -> bool {
    // "failed to deliver message: {not_found,\n {resource,<<"vhost">>,queue,<<"x">>}}"
    let beginning = "RESOURCE_ERROR - failed to deliver message: {not_found,";
    matches!(error, AmqpError::ConnectionLost { why } if why.starts_with(beginning))
}
