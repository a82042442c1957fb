//! How long a broker lets a client hold a token.

use lockkeeper_plan::naming::QueueType;

/// Returns what a broker of this version does to a token that is held for long, unless
/// the token queue permits that itself.
pub fn of(queue_type: QueueType, version: &str) -> Option<&'static str> {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match (queue_type, release) {
        (QueueType::Quorum, (3, 12..) | (4.., _)) | (QueueType::Classic, (4, 3..) | (5.., _)) => {
            None
        }
        (QueueType::Classic, (3, 12..) | (4, _)) => Some(
            "a token that is held for longer than the broker's consumer_timeout is lost, which is 30 min unless rabbitmq.conf or a policy says otherwise",
        ),
        _ => Some(
            "a token that is held for longer than the broker's consumer_timeout is lost, which is 30 min unless rabbitmq.conf says otherwise",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hold_limit_of_a_token_is_reported_where_the_queue_sets_none() {
        let (classic, quorum) = (QueueType::Classic, QueueType::Quorum);
        for (queue_type, version, told) in [
            (classic, "3.10.8", "unless rabbitmq.conf says"),
            (classic, "3.12.0", "unless rabbitmq.conf or a policy says"),
            (classic, "4.0.5", "unless rabbitmq.conf or a policy says"),
            (classic, "4.3.0", "no limit"),
            (quorum, "3.10.8", "unless rabbitmq.conf says"),
            (quorum, "3.13.7", "no limit"),
            (quorum, "4.0.5", "no limit"),
        ] {
            let said = of(queue_type, version).unwrap_or("no limit");
            assert!(said.contains(told), "{queue_type:?} on {version}: {said}");
        }
    }
}
