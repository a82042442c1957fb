//! A primary, its replica and a sentinel that monitors both, all real, private servers.
//! Contains no queue protocol.

use std::process::Child;

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_pressure::{Store, StoreOptions};

use crate::redis::{PrivateRedis, connect, free_port, in_time, random_word, spawn_guarded};

/// Retries until there is an answer, because a sentinel closes the connections of a
/// server that it makes a replica.
pub async fn ask<T: redis::FromRedisValue>(url: &str, command: &[&str]) -> T {
    let mut answer = None;
    in_time("a server answers", async || {
        let Ok(client) = redis::Client::open(url) else { return false };
        let Ok(mut raw) = client.get_multiplexed_async_connection().await else { return false };
        match redis::cmd(command[0]).arg(&command[1..]).query_async(&mut raw).await {
            Err(err) if err.is_io_error() => false,
            other => {
                answer = Some(other.unwrap());
                true
            }
        }
    })
    .await;
    answer.unwrap()
}

/// One sentinel, which needs no majority.
pub struct Sentinel {
    child: Child,
    /// Its port.
    pub port: u16,
    directory: std::path::PathBuf,
}

impl Sentinel {
    /// Monitors this server as `mymaster`.
    pub fn start(master: &PrivateRedis) -> Self {
        let port = free_port();
        let directory = std::env::temp_dir().join(format!("lockkeeper-sentinel-{}", random_word()));
        std::fs::create_dir(&directory).unwrap();
        // The sentinel writes to its own file.
        let file = directory.join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor mymaster 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds mymaster 500\n\
             sentinel failover-timeout mymaster 5000\n",
            directory.display(),
            master.port(),
        );
        std::fs::write(&file, text).unwrap();
        let child = spawn_guarded(&["redis-server", &file.to_string_lossy(), "--sentinel"]);
        Self { child, port, directory }
    }

    /// Returns the URL of the sentinel itself.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A master, its replica and a sentinel that monitors both.
pub struct Group {
    /// The primary at the start.
    pub master: PrivateRedis,
    /// Its replica at the start.
    pub replica: PrivateRedis,
    /// The sentinel.
    pub sentinel: Sentinel,
}

impl Group {
    /// Starts the servers, and waits until the replica follows and the sentinel knows it.
    pub async fn start() -> Self {
        let fast = ["--repl-diskless-sync-delay", "0"];
        let master = PrivateRedis::start(&fast).await;
        let port = master.port().to_string();
        let replica =
            PrivateRedis::start(&[&fast[..], &["--replicaof", "127.0.0.1", &port]].concat()).await;
        in_time("the replica follows", async || {
            let info: String = ask(&replica.url(), &["INFO", "replication"]).await;
            info.contains("master_link_status:up")
        })
        .await;
        let sentinel = Sentinel::start(&master);
        in_time("the sentinel knows the replica", async || {
            let Ok(client) = redis::Client::open(sentinel.url()) else { return false };
            let Ok(mut raw) = client.get_multiplexed_async_connection().await else { return false };
            let mut command = redis::cmd("SENTINEL");
            let master = command.arg(&["MASTER", "mymaster"]).query_async(&mut raw).await;
            master.is_ok_and(|fields: std::collections::HashMap<String, String>| {
                fields.get("num-slaves").is_some_and(|number| number == "1")
                    && fields.get("flags").is_some_and(|flags| flags == "master")
            })
        })
        .await;
        Self { master, replica, sentinel }
    }

    /// Returns settings whose first sentinel is down.
    pub fn settings(&self) -> RedisSettings {
        let (down, up) = (free_port(), self.sentinel.port);
        let url = format!("redis-sentinel://127.0.0.1:{down},127.0.0.1:{up}/0#mymaster");
        RedisSettings::from_url(&url).unwrap()
    }

    /// Returns a store that finds its server through the sentinels.
    pub fn store(&self) -> Store {
        Store::new(self.settings(), StoreOptions::new("the operator"))
    }

    /// Returns when the replica has become the master, and the master a replica.
    pub async fn fail_over(&self) {
        in_time("the sentinel has looked at the replica", async || {
            let mut sentinel = connect(&self.sentinel.url()).await;
            let mut failover = redis::cmd("SENTINEL");
            let answer = failover.arg(&["FAILOVER", "mymaster"]).query_async(&mut sentinel).await;
            answer.is_ok_and(|()| true)
        })
        .await;
        in_time("the old master is a replica", async || {
            let info: String = ask(&self.master.url(), &["INFO", "replication"]).await;
            info.contains("role:slave")
        })
        .await;
    }

    /// Waits until the replica has this key.
    pub async fn is_replicated(&self, key: &str) {
        in_time("the replica has the queue", async || {
            ask(&self.replica.url(), &["EXISTS", key]).await
        })
        .await;
    }

    /// Changes settings of the sentinel.
    pub async fn configure(&self, settings: &[(&str, &str)]) {
        for (name, value) in settings {
            let () = ask(&self.sentinel.url(), &["SENTINEL", "SET", "mymaster", name, value]).await;
        }
    }

    /// Waits until the sentinel names the former replica as the master, and it is one.
    pub async fn is_failed_over(&self) {
        in_time("the replica is the master", async || {
            let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"];
            let (_, port): (String, u16) = ask(&self.sentinel.url(), &command).await;
            let info: String = ask(&self.replica.url(), &["INFO", "replication"]).await;
            port == self.replica.port() && info.contains("role:master")
        })
        .await;
    }
}
