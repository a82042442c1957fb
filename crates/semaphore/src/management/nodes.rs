//! The nodes of a broker's cluster, as the management API lists them: which of them run, and
//! which have lost each other.

use lockkeeper_amqp::refusal::names_node;
use lockkeeper_plan::clean_text;
use serde::Deserialize;

use super::answer::List;
use super::{Management, ManagementError};
use crate::error::BrokerError;

/// Maximum number of nodes of a cluster.
const MAX_NODES: usize = 1_000;

/// Maximum number of lost nodes that are kept of a node.
const MAX_LOST: usize = 10;

/// Maximum length of a node's name, in bytes.
const MAX_NAME: usize = 256;

#[derive(Deserialize)]
struct ListedNode {
    name: String,
    #[serde(default)]
    running: bool,
    #[serde(default)]
    partitions: List<String, MAX_NODES>,
}

/// A node of the broker's cluster.
pub struct Node {
    pub name: String,
    pub runs: bool,
    /// Nodes that this node has lost although they run.
    pub lost: Vec<String>,
}

/// Returns the nodes. Requires the tag `monitoring`.
pub async fn nodes(management: &Management) -> Result<Vec<Node>, ManagementError> {
    let nodes: List<ListedNode, MAX_NODES> =
        management.list("nodes?columns=name,running,partitions").await?;
    let name = |name: String| clean_text(&name, MAX_NAME);
    let node = |node: ListedNode| Node {
        name: name(node.name),
        runs: node.running,
        lost: node.partitions.0.into_iter().take(MAX_LOST).map(name).collect(),
    };
    Ok(nodes.0.into_iter().map(node).collect())
}
/// Adds the names of the nodes that are down to an error that does not name the node, if
/// the management API shows them. Mnesia's refusals name it, and Khepri's do not.
pub async fn name_in(error: BrokerError, management: Option<&Management>) -> BrokerError {
    let (BrokerError::NodeDown { why }, Some(management)) = (&error, management) else {
        return error;
    };
    if names_node(why) {
        return error;
    }
    let nodes = nodes(management).await.unwrap_or_default().into_iter();
    let down: Vec<String> = nodes.filter(|node| !node.runs).map(|node| node.name).collect();
    if down.is_empty() {
        return error;
    }
    BrokerError::NodeDown { why: format!("{why}; not running: {}", down.join(", ")) }
}
