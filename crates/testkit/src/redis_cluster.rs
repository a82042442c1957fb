//! A Redis Cluster of three private nodes, whose slots can be moved step by step as
//! `redis-cli --cluster reshard` does. Contains no queue protocol.

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::QueueName;
use lockkeeper_pressure::{Store, StoreOptions};

use crate::redis::{PrivateRedis, connect, in_time};

/// The first and last slot of each node.
pub const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

// Nodes detect each other's failures by the timeout. A failed node must not stop the
// others.
const ARGUMENTS: [&str; 6] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "2000",
    "--cluster-require-full-coverage",
    "no",
];

/// The nodes of a cluster.
pub struct Cluster(pub Vec<PrivateRedis>);

impl Cluster {
    /// Starts a cluster of Redis, and waits until it is up.
    pub async fn start() -> Self {
        let mut nodes = Vec::new();
        for _ in SLOTS {
            nodes.push(PrivateRedis::start(&ARGUMENTS).await);
        }
        Self::of(nodes).await
    }

    /// Starts a cluster of Valkey, and waits until it is up.
    pub async fn valkey() -> Self {
        let mut nodes = Vec::new();
        for _ in SLOTS {
            nodes.push(PrivateRedis::valkey_with(&ARGUMENTS).await);
        }
        Self::of(nodes).await
    }

    async fn of(nodes: Vec<PrivateRedis>) -> Self {
        let cluster = Self(nodes);
        for (index, (first, last)) in SLOTS.into_iter().enumerate() {
            let (first, last) = (first.to_string(), last.to_string());
            let () = cluster.ask(index, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
            let port = cluster.0[0].port().to_string();
            let () = cluster
                .ask(index, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])
                .await;
            if index > 0 {
                let () = cluster.ask(index, &["CLUSTER", "MEET", "127.0.0.1", &port]).await;
            }
        }
        for index in 0..SLOTS.len() {
            in_time("the cluster is up", async || {
                let info: String = cluster.ask(index, &["CLUSTER", "INFO"]).await;
                ["cluster_state:ok", "cluster_known_nodes:3", "cluster_slots_assigned:16384"]
                    .iter()
                    .all(|part| info.contains(part))
            })
            .await;
        }
        cluster
    }

    /// Runs one command on a node.
    pub async fn ask<T: redis::FromRedisValue>(&self, node: usize, command: &[&str]) -> T {
        let mut connection = connect(&self.0[node].url()).await;
        let mut cmd = redis::cmd(command[0]);
        let answer = cmd.arg(&command[1..]).query_async(&mut connection).await;
        answer.unwrap_or_else(|err| panic!("{command:?} on node {node}: {err}"))
    }

    /// Returns the keys of each node.
    pub async fn keys(&self) -> Vec<Vec<String>> {
        let mut keys = Vec::new();
        for node in 0..SLOTS.len() {
            keys.push(self.ask(node, &["KEYS", "*"]).await);
        }
        keys
    }

    /// Returns how often a node has refused a command with this code.
    pub async fn refusals(&self, node: usize, code: &str) -> u64 {
        let info: String = self.ask(node, &["INFO", "errorstats"]).await;
        let start = format!("errorstat_{code}:count=");
        let count = info.lines().find_map(|line| line.strip_prefix(&start));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }

    /// Begins to move the queue's slot from one node to another.
    pub async fn begin_move(&self, queue: &QueueName, from: usize, to: usize) {
        self.begin_import(queue, from, to).await;
        self.set_slot(from, queue, &["MIGRATING", &self.id(to).await]).await;
    }

    /// Lets `to` import the queue's slot. A Valkey that imports a slot takes it over within about
    /// 1 s after the old node has stopped to claim it.
    pub async fn begin_import(&self, queue: &QueueName, from: usize, to: usize) {
        self.set_slot(to, queue, &["IMPORTING", &self.id(from).await]).await;
    }

    /// Ends the import of the queue's slot without a change of its owner.
    pub async fn end_import(&self, queue: &QueueName, to: usize) {
        self.set_slot(to, queue, &["STABLE"]).await;
    }

    /// Moves this number of keys of the queue's slot, or all if there are fewer.
    pub async fn move_keys(&self, queue: &QueueName, from: usize, to: usize, most: u32) {
        let (slot, most) = (queue.cluster_slot().unwrap().to_string(), most.to_string());
        let keys: Vec<String> = self.ask(from, &["CLUSTER", "GETKEYSINSLOT", &slot, &most]).await;
        let port = self.0[to].port().to_string();
        for key in keys {
            let () = self.ask(from, &["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]).await;
        }
    }

    /// Tells a node that the queue's slot belongs to `to`.
    pub async fn assign(&self, queue: &QueueName, to: usize, node: usize) {
        self.set_slot(node, queue, &["NODE", &self.id(to).await]).await;
    }

    async fn id(&self, node: usize) -> String {
        self.ask(node, &["CLUSTER", "MYID"]).await
    }

    async fn set_slot(&self, node: usize, queue: &QueueName, state: &[&str]) {
        let slot = queue.cluster_slot().unwrap().to_string();
        let () = self.ask(node, &[&["CLUSTER", "SETSLOT", &slot], state].concat()).await;
    }

    /// Moves the queue's slot from one node to another. `halfway` runs while one key has
    /// moved and the others have not.
    pub async fn move_slot(
        &self,
        queue: &QueueName,
        from: usize,
        to: usize,
        halfway: impl AsyncFnOnce(),
    ) {
        self.begin_move(queue, from, to).await;
        self.move_keys(queue, from, to, 1).await;
        halfway().await;
        self.move_keys(queue, from, to, 100).await;
        for node in [to, from, 3 - from - to] {
            self.assign(queue, to, node).await;
        }
    }

    /// Returns a store that only knows this node.
    pub fn store(&self, node: usize) -> Store {
        let settings = RedisSettings::from_url(&self.0[node].url()).unwrap();
        Store::new(settings, StoreOptions::new("the operator"))
    }
}

/// Returns the name of a queue whose keys are on this node.
pub fn queue_on(node: usize, word: &str) -> QueueName {
    let (first, last) = SLOTS[node];
    (0..10_000)
        .map(|number| QueueName::new("p", format!("{{{word}-{number}}}")).unwrap())
        .find(|queue| (first..=last).contains(&queue.cluster_slot().unwrap()))
        .unwrap()
}
