//! Three RabbitMQ nodes that form a cluster. dev/test starts them once with dev/cluster; a
//! test kills and restarts nodes 2 and 3. Node 1 always runs: it serves the management API,
//! and the virtual host that each test creates.

use std::path::Path;

use lockkeeper::plan::connection::RabbitmqSettings;

use super::environment::variable;
use super::own_server::OwnServer;
use super::rabbitmq::{Vhost, eventually};

/// The cluster, with a virtual host for one test.
pub struct Cluster {
    pub vhost: Vhost,
    nodes: [OwnServer; 3],
}

impl Cluster {
    /// Starts the nodes that a previous test has left down.
    pub async fn whole() -> Self {
        let directory = variable("LOCKKEEPER_CLUSTER_DIR");
        let node = |n: &str| OwnServer::shared_rabbitmq(Path::new(&directory).join(n));
        let nodes = ["1", "2", "3"].map(node);
        for node in &nodes {
            node.start().await;
        }
        let cluster = Self { vhost: Vhost::create().await, nodes };
        cluster.shows_running(3).await;
        cluster
    }

    /// Returns settings for this virtual host at one node, with the management API of
    /// node 1.
    pub fn settings(&self, node: usize) -> RabbitmqSettings {
        let url = self.nodes[node - 1].variable("AMQP_URL");
        let mut settings = RabbitmqSettings::from_urls(&url, None).unwrap();
        settings.vhost.clone_from(&self.vhost.name);
        RabbitmqSettings { management: self.vhost.settings().management, ..settings }
    }

    /// Kills a node. Returns when the others have noticed.
    pub async fn lose(&self, node: usize) {
        assert_ne!(node, 1, "node 1 has the tests' virtual hosts");
        self.nodes[node - 1].kill().await;
        self.shows_running(2).await;
    }

    /// Restarts a node. Returns when the others have noticed.
    pub async fn regain(&self, node: usize) {
        self.nodes[node - 1].start().await;
        self.shows_running(3).await;
    }

    async fn shows_running(&self, count: usize) {
        eventually("node 1 knows which nodes run", async || {
            let nodes = self.vhost.management.get("nodes?columns=running").await.unwrap();
            nodes.as_array().unwrap().iter().filter(|node| node["running"] == true).count() == count
        })
        .await;
    }
}
