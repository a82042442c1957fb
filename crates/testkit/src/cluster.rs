//! Three RabbitMQ nodes that form a cluster. dev/test starts them once with dev/cluster; a
//! test kills, restarts, suspends and separates nodes 2 and 3. Node 1 serves the management
//! API, and the virtual host that each test creates, so it may only be restarted.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper_plan::connection::RabbitmqSettings;
use serde_json::Value;

use super::built::checkout;
use super::environment::{provide_tls, variable};
use super::own_server::{OwnServer, succeed};
use super::rabbitmq::{Vhost, eventually};

/// Separates a node from the others, which stay connected to each other. With another
/// cookie for them it neither connects to them nor accepts their connections.
/// `rabbitmqctl` still uses the node's own cookie.
const SEPARATE: &str = "
    Others = [Node || Node <- nodes(), lists:prefix(atom_to_list(lockkeeper), atom_to_list(Node))],
    2 = length(Others),
    persistent_term:put(separated_from, Others),
    [erlang:set_cookie(Node, separated) || Node <- Others],
    [erlang:disconnect_node(Node) || Node <- Others].";

/// Ends that separation.
const RECONNECT: &str = "
    Others = persistent_term:get(separated_from),
    [erlang:set_cookie(Node, erlang:get_cookie()) || Node <- Others],
    [net_kernel:connect_node(Node) || Node <- Others].";

/// How long a node with Mnesia may report a partition before it is restarted. After a
/// short separation it restarts its database by itself. After a suspension it can stay in
/// the partition.
const STUCK: Duration = Duration::from_secs(8);

/// How long a node may stay away after a fault has ended, before it is restarted. Seen once with
/// 3.10, while two compilers kept the machine busy.
const AWAY: Duration = Duration::from_secs(25);

/// The cluster, with a virtual host for one test.
pub struct Cluster {
    /// The virtual host of the test.
    pub vhost: Vhost,
    nodes: [OwnServer; 3],
}

impl Cluster {
    /// Returns the cluster with all nodes running and connected, whatever state a failed
    /// test has left.
    pub async fn whole() -> Self {
        provide_tls();
        let directory = variable("LOCKKEEPER_CLUSTER_DIR");
        let node = |n: &str| OwnServer::shared_rabbitmq(Path::new(&directory).join(n));
        let nodes = ["1", "2", "3"].map(node);
        for node in &nodes {
            node.go_on();
        }
        if !gets_whole(&nodes[0]).await {
            restart_all(&directory).await;
        }
        for node in &nodes {
            // Waits until it accepts clients.
            node.start().await;
        }
        eventually("the cluster is whole", async || is_whole(&states(&nodes[0]).await)).await;
        // A cluster with a partition may refuse to create it.
        Self { vhost: Vhost::create().await, nodes }
    }

    /// Returns settings for this virtual host at one node, with the management API of
    /// node 1.
    pub fn settings(&self, node: usize) -> RabbitmqSettings {
        let url = self.nodes[node - 1].variable("AMQP_URL");
        let mut settings = RabbitmqSettings::from_urls(&url, None).unwrap();
        settings.vhost.clone_from(&self.vhost.name);
        RabbitmqSettings { management: self.vhost.settings().management, ..settings }
    }

    /// Returns the AMQP URL of this virtual host at one node, for a separate program.
    pub fn url(&self, node: usize) -> String {
        let mut url = self.variable(node, "AMQP_URL");
        url.set_path(&self.vhost.name);
        url.into()
    }

    /// Returns a URL of a node: `AMQP_URL` or `RABBITMQ_MANAGEMENT_URL`.
    pub fn variable(&self, node: usize, name: &str) -> url::Url {
        url_of(&self.nodes[node - 1], name)
    }

    /// Returns whether the nodes store their metadata in Khepri instead of Mnesia.
    /// dev/cluster enables it on RabbitMQ 4.
    pub fn has_khepri(&self) -> bool {
        !self.nodes[0].variable("LOCKKEEPER_RABBITMQ").is_empty()
    }

    /// Kills a node. Returns when the others have noticed.
    pub async fn lose(&self, node: usize) {
        self.faulty(node).kill().await;
        self.shows_running(2).await;
    }

    /// Restarts a node. Returns when the others have noticed.
    pub async fn regain(&self, node: usize) {
        self.faulty(node).start().await;
        self.shows_running(3).await;
    }

    /// Stops a node cleanly. Returns when the others have noticed.
    pub async fn stop(&self, node: usize) {
        self.faulty(node).stop().await;
        self.shows_running(2).await;
    }

    /// Stops a node cleanly and starts it, also node 1. Returns when the others have
    /// noticed.
    pub async fn restart(&self, node: usize) {
        self.nodes[node - 1].stop().await;
        self.nodes[node - 1].start().await;
        self.shows_running(3).await;
    }

    /// Suspends a node, with all its connections open. Returns when the others regard it
    /// as down, which takes 6 to 10 s with the tick time of dev/rabbitmq.
    pub async fn hang(&self, node: usize) {
        self.faulty(node).hang();
        self.shows_running(2).await;
    }

    /// Resumes a suspended node. Returns when the cluster is whole again, and whether the
    /// node had to be restarted for that.
    pub async fn resume(&self, node: usize) -> bool {
        self.faulty(node).go_on();
        self.heal(node).await
    }

    /// Separates a node from the other two. Its clients stay connected to it. Returns when
    /// the others have noticed.
    pub async fn part(&self, node: usize) {
        self.faulty(node).evaluate(SEPARATE).await;
        self.shows_running(2).await;
    }

    /// Reconnects a separated node. Returns when the cluster is whole again, and whether
    /// the node had to be restarted for that.
    pub async fn join(&self, node: usize) -> bool {
        self.faulty(node).evaluate(RECONNECT).await;
        self.heal(node).await
    }

    /// Lets each side of a partition go on, instead of pausing the smaller one.
    pub async fn ignore_partitions(&self, ignored: bool) {
        let handling = if ignored { "ignore" } else { "pause_minority" };
        let set = format!("application:set_env(rabbit, cluster_partition_handling, {handling}).");
        for node in &self.nodes {
            node.evaluate(&set).await;
        }
    }

    fn faulty(&self, node: usize) -> &OwnServer {
        assert_ne!(node, 1, "node 1 has the tests' virtual hosts");
        &self.nodes[node - 1]
    }

    /// Waits until all nodes run and report no partition. Restarts the node if it stays in
    /// one, or stays away. Returns whether it did so.
    async fn heal(&self, node: usize) -> bool {
        let begun = Instant::now();
        let mut restarted = false;
        eventually("the cluster is whole", async || {
            let states = self.states().await;
            let parted = states.iter().filter_map(partitions).any(|count| count > 0);
            let limit = if parted { STUCK } else { AWAY };
            if !restarted && !is_whole(&states) && begun.elapsed() > limit {
                restarted = true;
                self.nodes[node - 1].kill().await;
                self.nodes[node - 1].start().await;
            }
            is_whole(&states)
        })
        .await;
        // Waits until it accepts clients again.
        self.nodes[node - 1].start().await;
        restarted
    }

    async fn shows_running(&self, count: usize) {
        eventually("node 1 knows which nodes run", async || self.running().await == count).await;
    }

    /// Returns the name of the node that is down.
    pub async fn down(&self) -> String {
        let mut name = None;
        eventually("node 1 knows which node is down", async || {
            let states = self.states().await;
            let down = states.iter().find(|node| !is_running(node));
            name = down.map(|node| node["name"].as_str().unwrap().to_owned());
            name.is_some()
        })
        .await;
        name.unwrap()
    }

    async fn running(&self) -> usize {
        self.states().await.iter().filter(|node| is_running(node)).count()
    }

    async fn states(&self) -> Vec<Value> {
        states(&self.nodes[0]).await
    }
}

/// Returns the nodes as this one knows them, or nothing if it does not answer, as while another
/// one disappears.
async fn states(node: &OwnServer) -> Vec<Value> {
    let mut url = url_of(node, "RABBITMQ_MANAGEMENT_URL");
    url.set_path("api/nodes");
    url.set_query(Some("columns=name,running,partitions"));
    match reqwest::get(url).await {
        Ok(answer) if answer.status().is_success() => answer.json().await.unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Whether this node reports that all nodes run, and soon also that there is no partition.
async fn gets_whole(node: &OwnServer) -> bool {
    let begun = Instant::now();
    loop {
        let states = states(node).await;
        let all_run = states.len() == 3 && states.iter().all(is_running);
        if is_whole(&states) || !all_run || begun.elapsed() > AWAY {
            return is_whole(&states);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Kills and starts all nodes at once. A partition between any two of them, a separation and a
/// changed setting end with that, and the definitions stay.
async fn restart_all(directory: &str) {
    for verb in ["kill", "start"] {
        let mut command = Command::new(checkout().join("dev/cluster"));
        command.args([verb, directory]);
        succeed(command).await;
    }
}

fn url_of(node: &OwnServer, name: &str) -> url::Url {
    url::Url::parse(&node.variable(name)).unwrap()
}

fn is_whole(states: &[Value]) -> bool {
    let is_well = |state| is_running(state) && partitions(state) == Some(0);
    states.len() == 3 && states.iter().all(is_well)
}

fn is_running(state: &Value) -> bool {
    state["running"] == true
}

/// Returns the number of partitions that the node reports. `None` if it reports nothing,
/// because it does not run, or is starting.
fn partitions(state: &Value) -> Option<usize> {
    state["partitions"].as_array().map(Vec::len)
}
