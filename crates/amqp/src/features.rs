//! What the broker's software offers, and where its answers differ from RabbitMQ's. Any
//! product that is not known here is treated like RabbitMQ. See docs/brokers.md for the
//! consequences.

use lapin::types::{AMQPValue, FieldTable};

/// The beginning of Qpid Broker-J's product name.
const QPID: &str = "Apache Qpid";

/// The argument that makes a queue exclusive to a container, which is the connection's
/// client property `instance`. With Qpid's usual policy, a queue has no owner between the
/// end of its owner's connection and its deletion, and a second client can take it (999 of
/// 2,428 acquisitions overlapped; 0 of 1,343 with this argument).
const EXCLUSIVITY: (&str, &str) = ("qpid.exclusivity_policy", "CONTAINER");

/// How to find out whether a queue exists, without declaring it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A mandatory publish with publisher confirms.
    Confirm,
    /// A mandatory publish in a transaction.
    Tx,
    /// A passive declare, which closes the channel if the queue is missing.
    Declare,
}

/// The software of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    /// RabbitMQ, or one that is treated like it.
    RabbitMq,
    /// Apache Qpid Broker-J.
    Qpid,
}

/// What a broker's software offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    product: Product,
    /// How to find out whether a queue exists.
    pub probe: Probe,
}

impl Features {
    /// RabbitMQ's, with this way to probe if one was chosen.
    pub fn of_rabbitmq(probe: Option<Probe>) -> Self {
        Self { product: Product::RabbitMq, probe: probe.unwrap_or(Probe::Confirm) }
    }

    /// Those of a broker with this product name, which announces publisher confirms or not.
    pub fn announced(product: &str, confirms: bool, probe: Option<Probe>) -> Self {
        let is_qpid = product.starts_with(QPID);
        let product = if is_qpid { Product::Qpid } else { Product::RabbitMq };
        let best = if confirms { Probe::Confirm } else { Probe::Tx };
        Self { product, probe: probe.unwrap_or(best) }
    }

    fn is_qpid(self) -> bool {
        self.product == Product::Qpid
    }

    /// Returns the arguments for an ordinary queue. Qpid closes the connection of a client
    /// that sends an argument of RabbitMQ.
    pub fn arguments(self, arguments: FieldTable) -> FieldTable {
        if self.is_qpid() { FieldTable::default() } else { arguments }
    }

    /// Returns the arguments for a queue that is exclusive to a connection.
    pub fn exclusive_arguments(self, arguments: FieldTable) -> FieldTable {
        if !self.is_qpid() {
            return arguments;
        }
        let mut exclusivity = FieldTable::default();
        let (name, value) = EXCLUSIVITY;
        exclusivity.insert(name.into(), AMQPValue::LongString(value.into()));
        exclusivity
    }

    /// Returns the expiration of a message that expires immediately: in milliseconds from
    /// now, or for Qpid since 1970, where 0 means never.
    pub fn expired(self) -> &'static str {
        if self.is_qpid() { "1" } else { "0" }
    }

    /// Whether a negative confirm means that a mandatory message reached no queue. Qpid
    /// sends it instead of the confirm, and the returned message after it.
    pub fn nack_means_missing(self) -> bool {
        self.is_qpid()
    }

    /// Whether an operation on a queue that is exclusive to another connection ends this
    /// connection (530), and with it everything that it owns. RabbitMQ only ends the
    /// channel (405).
    pub fn refusal_ends_connection(self) -> bool {
        self.is_qpid()
    }

    /// Whether a message can expire some time after it was published. Qpid takes an
    /// expiration for a moment, by its own clock. Without it, wake-ups would pile up, so
    /// clients poll.
    pub fn expires_later(self) -> bool {
        !self.is_qpid()
    }

    /// Whether deleting a missing queue is refused (404).
    pub fn reports_missing_at_delete(self) -> bool {
        self.is_qpid()
    }

    /// Whether a queue can be limited to a number of messages (`x-max-length`).
    pub fn has_length_limit(self) -> bool {
        !self.is_qpid()
    }

    /// Whether a consumer gets a notice (`basic.cancel`) when its queue is deleted.
    pub fn notifies_consumers(self) -> bool {
        !self.is_qpid()
    }

    /// Whether the number of unacknowledged messages can be known, from RabbitMQ's
    /// management API.
    pub fn shows_unacknowledged(self) -> bool {
        !self.is_qpid()
    }

    /// Returns the product's name, for messages.
    pub fn product(self) -> &'static str {
        match self.product {
            Product::RabbitMq => "RabbitMQ",
            Product::Qpid => "Apache Qpid Broker-J",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_is_the_chosen_one_or_else_the_best_that_is_announced() {
        let probe =
            |product: &str, confirms, chosen| Features::announced(product, confirms, chosen).probe;
        assert_eq!(probe("RabbitMQ", true, None), Probe::Confirm);
        assert_eq!(probe("Apache Qpid Broker-J Core", false, None), Probe::Tx);
        assert_eq!(probe("LavinMQ", true, None), Probe::Confirm);
        assert_eq!(probe("LavinMQ", true, Some(Probe::Declare)), Probe::Declare);
        assert_eq!(Features::of_rabbitmq(None), Features::announced("RabbitMQ", true, None));
    }
}
