//! A broker's description of itself. See `access` for where it comes from.

use lockkeeper_amqp::identity::Greeting;
use lockkeeper_plan::clean_text;

/// Maximum length of each text, in bytes.
const MAX_TEXT: usize = 256;

/// A broker's description of itself. Any server can claim the same, so it does not prove
/// that two addresses lead to one broker. See [`Broker::is_same_as`](crate::Broker::is_same_as).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BrokerIdentity {
    /// The cluster's id. Only the management API shows it, and only to an administrator.
    pub cluster_id: Option<String>,
    /// The cluster's name. The RabbitMQ cluster operator uses the name of the
    /// `RabbitmqCluster`, so two clusters often have the same name.
    pub cluster_name: String,
    /// `RabbitMQ`, or another product that implements AMQP 0-9-1.
    pub product: String,
    /// The version of the node that answered.
    pub version: String,
}

impl BrokerIdentity {
    /// Reads a greeting, and adds the cluster's id if it is known.
    pub(super) fn new(greeting: &Greeting, cluster_id: Option<String>) -> Self {
        let clean = |text: &str| clean_text(text, MAX_TEXT);
        Self {
            cluster_id,
            cluster_name: clean(&greeting.cluster_name),
            product: clean(&greeting.product),
            version: clean(&greeting.version),
        }
    }
}
