//! A real Redis for tests: the shared one of `REDIS_URL`, where each test keeps
//! to its own random key prefix, and private ones for what the shared one must
//! not be made to do (run out of memory, restart, be a cluster). No protocol of
//! queues here.

#![allow(dead_code)] // each test binary uses its own part

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::plan::connection::RedisSettings;
use lockkeeper::plan::naming::{KEY_SUFFIXES, QueueName};
use lockkeeper::pressure::{Store, StoreOptions};
use redis::aio::MultiplexedConnection;

/// Longest wait for anything that should happen at once.
pub const SOON: Duration = Duration::from_secs(5);

/// The shared server's address. Fails the test when there is none: a test that
/// is skipped proves nothing.
pub fn url() -> String {
    std::env::var("REDIS_URL").unwrap_or_else(|_| {
        panic!("REDIS_URL is not set: run `make test`, which starts a Redis and sets it")
    })
}

/// A random word, for names that no other test has.
pub fn random_word() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// A connection that waits for answers as long as they take.
pub async fn connect(url: &str) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url).expect("a Redis URL");
    client.get_multiplexed_async_connection_with_config(&config).await.expect("Redis answers")
}

/// Waits until `condition` holds, and fails the test after [`SOON`].
pub async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    until(SOON, what, condition).await;
}

/// As [`eventually`], for what several servers must agree on first: half a
/// minute.
pub async fn in_time(what: &str, condition: impl AsyncFnMut() -> bool) {
    until(Duration::from_secs(30), what, condition).await;
}

async fn until(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition().await {
        assert!(Instant::now() < deadline, "still not so after {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the connection with this `CLIENT ID` sleeps in a blocking
/// command.
pub async fn wait_until_blocked(connection: &MultiplexedConnection, client: i64) {
    eventually("the client waits", async || is_blocked(connection, client).await).await;
}

/// Whether the connection with this `CLIENT ID` sleeps in a blocking command.
pub async fn is_blocked(connection: &MultiplexedConnection, client: i64) -> bool {
    let list: String = redis::cmd("CLIENT")
        .arg("LIST")
        .arg("ID")
        .arg(client)
        .query_async(&mut connection.clone())
        .await
        .expect("CLIENT LIST");
    list.split_whitespace()
        .find_map(|field| field.strip_prefix("flags="))
        .is_some_and(|flags| flags.contains('b'))
}

/// One test's place on a server: a random prefix, a queue in it, and whatever
/// it takes to look at the queue's keys from outside. Removes every key of the
/// prefix when it is dropped, also by a failing test.
pub struct Place {
    pub url: String,
    pub queue: QueueName,
    pub raw: MultiplexedConnection,
}

impl Place {
    /// On the shared server.
    pub async fn new() -> Self {
        Self::at(&url()).await
    }

    /// On this server.
    pub async fn at(url: &str) -> Self {
        let queue = QueueName::new(format!("test-{}", random_word()), "jobs").expect("a name");
        Self { url: url.to_owned(), queue, raw: connect(url).await }
    }

    /// What a `Store` needs to reach this server.
    pub fn settings(&self) -> RedisSettings {
        RedisSettings::from_url(&self.url).expect("a Redis URL")
    }

    /// A new store, with a connection of its own.
    pub fn store(&self) -> Store {
        Store::new(self.settings(), StoreOptions::new("the operator"))
    }

    /// The key with this suffix; "" is the data list.
    pub fn key(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.queue.data())
    }

    /// Runs one command.
    pub async fn run<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut cmd = redis::cmd(command[0]);
        for arg in &command[1..] {
            cmd.arg(arg);
        }
        cmd.query_async(&mut self.raw.clone())
            .await
            .unwrap_or_else(|err| panic!("{command:?}: {err}"))
    }

    /// How many elements the list at this suffix has.
    pub async fn length(&self, suffix: &str) -> u64 {
        self.run(&["LLEN", &self.key(suffix)]).await
    }

    /// The suffixes of the queue's keys that exist, and the text of each: what
    /// two states are compared by.
    pub async fn dump(&self) -> Vec<(String, Vec<String>)> {
        let mut found = Vec::new();
        for suffix in std::iter::once("").chain(KEY_SUFFIXES) {
            let key = self.key(suffix);
            let kind: String = self.run(&["TYPE", &key]).await;
            let content = match kind.as_str() {
                "none" => continue,
                "list" => self.run(&["LRANGE", &key, "0", "-1"]).await,
                "string" => vec![self.run(&["GET", &key]).await],
                other => vec![other.to_owned()],
            };
            found.push((suffix.to_owned(), content));
        }
        found
    }

    /// The suffixes of the queue's keys that exist.
    pub async fn present(&self) -> Vec<String> {
        self.dump().await.into_iter().map(|(suffix, _)| suffix).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Nothing to clean on a server that the test has stopped.
        let Ok(client) = redis::Client::open(self.url.as_str()) else { return };
        let Ok(mut connection) = client.get_connection() else { return };
        let pattern = format!("{}:*", self.queue.prefix());
        let mut cursor = 0_u64;
        loop {
            let page: Result<(u64, Vec<String>), _> = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(1000)
                .query(&mut connection);
            let Ok((next, keys)) = page else { return };
            for key in keys {
                let _: Result<(), _> = redis::cmd("DEL").arg(key).query(&mut connection);
            }
            cursor = next;
            if cursor == 0 {
                return;
            }
        }
    }
}

/// A user with ACL rules of its own on the place's server; removed when dropped.
pub struct AclUser {
    url: String,
    pub name: String,
    pub settings: RedisSettings,
}

impl AclUser {
    /// The password of every such user.
    pub const PASSWORD: &'static str = "hush-acl";

    /// Settings for a user that does not exist yet.
    pub fn named_for(place: &Place) -> Self {
        let name = format!("user-{}", random_word());
        let mut settings = place.settings();
        settings.username = Some(name.clone());
        settings.password = Some(Self::PASSWORD.into());
        Self { url: place.url.clone(), name, settings }
    }

    /// Gives the user these rules, and makes it where it does not exist.
    pub async fn set(&self, place: &Place, rules: &[&str]) {
        let password = format!(">{}", Self::PASSWORD);
        let mut command = vec!["ACL", "SETUSER", &self.name, "reset", "on", &password];
        command.extend(rules);
        let () = place.run(&command).await;
    }
}

impl Drop for AclUser {
    fn drop(&mut self) {
        let Ok(client) = redis::Client::open(self.url.as_str()) else { return };
        let Ok(mut connection) = client.get_connection() else { return };
        let mut command = redis::cmd("ACL");
        let _: Result<(), _> = command.arg(&["DELUSER", &self.name]).query(&mut connection);
    }
}

/// A Redis server of this test alone: no password, nothing on disk. Ends with
/// this value.
pub struct PrivateRedis {
    child: Child,
    program: String,
    port: u16,
    arguments: Vec<String>,
    directory: std::path::PathBuf,
}

impl PrivateRedis {
    /// Starts a server with these further arguments and waits until it answers.
    pub async fn start(arguments: &[&str]) -> Self {
        Self::start_program("redis-server", arguments).await
    }

    /// A Valkey. `VALKEY_SERVER` names the program.
    pub async fn valkey() -> Self {
        let program = std::env::var("VALKEY_SERVER").unwrap_or_else(|_| {
            panic!("VALKEY_SERVER is not set: run `make test`, which fetches a Valkey and sets it")
        });
        Self::start_program(&program, &[]).await
    }

    async fn start_program(program: &str, arguments: &[&str]) -> Self {
        let port = free_port();
        let directory = std::env::temp_dir().join(format!("lockkeeper-test-{}", random_word()));
        std::fs::create_dir(&directory).unwrap();
        let arguments: Vec<String> = arguments.iter().map(|&arg| arg.to_owned()).collect();
        let child = spawn(program, port, &arguments, &directory);
        let server = Self { child, program: program.to_owned(), port, arguments, directory };
        server.wait_until_up().await;
        server
    }

    /// The server's address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server, at once and without saving.
    pub fn kill(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }

    /// Starts the killed server again, empty, on the same port.
    pub async fn restart(&mut self) {
        self.child = spawn(&self.program, self.port, &self.arguments, &self.directory);
        self.wait_until_up().await;
    }

    async fn wait_until_up(&self) {
        let what = format!("the private {} answers (is it installed?)", self.program);
        eventually(&what, async || {
            let client = redis::Client::open(self.url()).unwrap();
            client.get_multiplexed_async_connection().await.is_ok()
        })
        .await;
    }
}

/// A free port below those that connections leave from (while a killed server is
/// down, none of them takes its port), and so is the port 10,000 above it, which
/// a cluster's node listens on too.
pub fn free_port() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    std::iter::repeat_with(|| rand::random_range(12_000..22_000))
        .find(|port| is_free(*port) && is_free(*port + 10_000))
        .expect("a free port")
}

fn spawn(program: &str, port: u16, arguments: &[String], directory: &std::path::Path) -> Child {
    let (port, directory) = (port.to_string(), directory.to_string_lossy());
    let mut command = vec![program, "--port", &port, "--bind", "127.0.0.1", "--save", ""];
    command.extend(["--appendonly", "no", "--dir", &directory]);
    command.extend(arguments.iter().map(String::as_str));
    spawn_guarded(&command)
}

/// A server that runs until our end of its input closes: so it also ends with a
/// test process that was killed and dropped nothing.
pub fn spawn_guarded(command: &[&str]) -> Child {
    const RUN: &str = r#""$@" </dev/null >/dev/null &
        server=$!; cat >/dev/null; kill -9 $server; wait $server 2>/dev/null"#;
    Command::new("sh")
        .args(["-c", RUN, "sh"])
        .args(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("sh starts")
}

impl Drop for PrivateRedis {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
