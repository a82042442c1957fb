//! A real Redis for tests: the shared one of `REDIS_URL`, where each test uses its own
//! random key prefix, and private ones for events that the shared one must not experience
//! (out of memory, restart, cluster). Contains no queue protocol.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::naming::{KEY_SUFFIXES, QueueName};
use lockkeeper_pressure::{Store, StoreOptions};
use redis::aio::MultiplexedConnection;

use super::environment::{pause, signal};

/// Time limit for events that should happen immediately.
pub const SOON: Duration = Duration::from_secs(20);

/// Returns the shared server's address. Fails the test if there is none, because a
/// skipped test proves nothing.
pub fn url() -> String {
    std::env::var("REDIS_URL").unwrap_or_else(|_| {
        panic!("REDIS_URL is not set: run `make test`, which starts a Redis and sets it")
    })
}

/// Returns a random word for unique names.
pub fn random_word() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Opens a connection.
pub async fn connect(url: &str) -> MultiplexedConnection {
    connection(url).await.expect("Redis answers")
}

/// Opens a connection without time limits: the crate's defaults, 500 ms for an answer and
/// 1 s for a connection, are shorter than a pause of a loaded machine.
pub async fn connection(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    let config =
        redis::AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

/// Waits until `condition` holds. Fails the test after [`SOON`].
pub async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    until(SOON, what, condition).await;
}

/// Resolves after this time, which may be shorter than the whole milliseconds of a timer. An
/// operation on a fast machine is over before them.
pub async fn precisely(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        tokio::task::yield_now().await;
    }
}

/// Waits like [`eventually`], for conditions on which several servers have to agree: half
/// a minute.
pub async fn in_time(what: &str, condition: impl AsyncFnMut() -> bool) {
    until(Duration::from_secs(30), what, condition).await;
}

async fn until(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < limit, "still not so after {limit:?}: {what}");
        tokio::time::sleep(pause(start, Duration::from_millis(2), Duration::from_millis(50))).await;
    }
}

/// Waits until the connection with this `CLIENT ID` is in a blocking command.
pub async fn wait_until_blocked(connection: &MultiplexedConnection, client: i64) {
    eventually("the client waits", async || is_blocked(connection, client).await).await;
}

/// Returns whether the connection with this `CLIENT ID` is in a blocking command.
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

/// Waits until no client of a private server runs scripts. A client that began to wait
/// checks its queue once more, and the outcome of that check is uncertain if the server
/// ends during that time.
pub async fn until_no_script_runs(url: &str) {
    let mut connection = connect(url).await;
    let mut scripts = async || {
        let mut command = redis::cmd("INFO");
        let info: String =
            command.arg("commandstats").query_async(&mut connection).await.expect("INFO");
        info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).map(str::to_owned)
    };
    let mut before = scripts().await;
    in_time("no script runs", async || {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = scripts().await;
        std::mem::replace(&mut before, now.clone()) == now
    })
    .await;
}

/// A queue of one test, with a random prefix, and access to the
/// queue's keys. Removes every key with the prefix when dropped, also by a failing test.
pub struct TestQueue {
    /// The URL of the server.
    pub url: String,
    /// The queue of the test.
    pub queue: QueueName,
    /// A connection to the server.
    pub raw: MultiplexedConnection,
}

impl TestQueue {
    /// Names a queue on the shared server.
    pub async fn new() -> Self {
        Self::at(&url()).await
    }

    /// Names a queue on this server.
    pub async fn at(url: &str) -> Self {
        let queue = QueueName::new(format!("test-{}", random_word()), "jobs").expect("a name");
        Self { url: url.to_owned(), queue, raw: connect(url).await }
    }

    /// Returns the same queue with a new connection, for a server that was restarted.
    pub async fn reconnected(&self) -> Self {
        Self { url: self.url.clone(), queue: self.queue.clone(), raw: connect(&self.url).await }
    }

    /// Returns the settings of a `Store` for this server.
    pub fn settings(&self) -> RedisSettings {
        RedisSettings::from_url(&self.url).expect("a Redis URL")
    }

    /// Returns a new store with its own connection.
    pub fn store(&self) -> Store {
        Store::new(self.settings(), StoreOptions::new("the operator"))
    }

    /// Returns the key with this suffix; "" is the data list.
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

    /// Returns the number of elements of the list with this suffix.
    pub async fn length(&self, suffix: &str) -> u64 {
        self.run(&["LLEN", &self.key(suffix)]).await
    }

    /// Returns the suffixes of the queue's existing keys with the text of each, to
    /// compare two states.
    pub async fn dump(&self) -> Vec<(String, Vec<String>)> {
        let mut found = Vec::new();
        for suffix in std::iter::once("").chain(KEY_SUFFIXES) {
            let key = self.key(suffix);
            let kind: String = self.run(&["TYPE", &key]).await;
            let content = match kind.as_str() {
                "none" => continue,
                "list" => self.run(&["LRANGE", &key, "0", "-1"]).await,
                "string" => vec![self.run(&["GET", &key]).await],
                "hash" => self.run(&["HGETALL", &key]).await,
                "zset" => self.run(&["ZRANGE", &key, "0", "-1"]).await,
                other => vec![other.to_owned()],
            };
            found.push((suffix.to_owned(), content));
        }
        found
    }

    /// Returns the suffixes of the queue's existing keys.
    pub async fn present(&self) -> Vec<String> {
        self.dump().await.into_iter().map(|(suffix, _)| suffix).collect()
    }
}

impl Drop for TestQueue {
    fn drop(&mut self) {
        // Nothing to clean up on a server that the test has stopped.
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

/// A user with its own ACL rules on the server of a queue. Removed when dropped.
pub struct AclUser {
    url: String,
    /// Its name.
    pub name: String,
    /// Settings of a `Store` for this user.
    pub settings: RedisSettings,
}

impl AclUser {
    /// The password of every such user.
    pub const PASSWORD: &'static str = "hush-acl";

    /// Returns settings for a user that does not exist yet.
    pub fn named_for(queue: &TestQueue) -> Self {
        let name = format!("user-{}", random_word());
        let mut settings = queue.settings();
        settings.username = Some(name.clone());
        settings.password = Some(Self::PASSWORD.into());
        Self { url: queue.url.clone(), name, settings }
    }

    /// Sets the rules of the user, and creates it if it does not exist.
    pub async fn set(&self, queue: &TestQueue, rules: &[&str]) {
        let password = format!(">{}", Self::PASSWORD);
        let mut command = vec!["ACL", "SETUSER", &self.name, "reset", "on", &password];
        command.extend(rules);
        let () = queue.run(&command).await;
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

/// Returns the number of connections in a blocking command.
pub async fn asleep(queue: &TestQueue) -> usize {
    let clients: String = queue.run(&["CLIENT", "LIST"]).await;
    clients.lines().filter(|line| line.contains("flags=b")).count()
}

/// Waits until a client does nothing but wait.
pub async fn is_waiting(queue: &TestQueue) {
    eventually("it waits", async || asleep(queue).await == 2).await;
    until_no_script_runs(&queue.url).await;
}

/// Stops the process by SIGSTOP, and waits until it does not run.
pub async fn hang(pid: u32) {
    signal(pid, "STOP");
    in_time("the server hangs", async || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    })
    .await;
}

/// A private Redis server without password and persistence. Ended when dropped.
pub struct PrivateRedis {
    child: Child,
    program: String,
    port: u16,
    arguments: Vec<String>,
    directory: std::path::PathBuf,
}

impl PrivateRedis {
    /// Starts a server with these additional arguments and waits until it responds.
    pub async fn start(arguments: &[&str]) -> Self {
        Self::start_program("redis-server", arguments).await
    }

    /// Starts a Valkey. `VALKEY_SERVER` is the program's path.
    pub async fn valkey() -> Self {
        Self::valkey_with(&[]).await
    }

    /// Starts a Valkey with these additional arguments.
    pub(crate) async fn valkey_with(arguments: &[&str]) -> Self {
        let program = std::env::var("VALKEY_SERVER").unwrap_or_else(|_| {
            panic!("VALKEY_SERVER is not set: run `make test`, which fetches a Valkey and sets it")
        });
        Self::start_program(&program, arguments).await
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

    /// Returns the server's URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Returns the server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the server's process id.
    pub async fn pid(&self) -> u32 {
        let mut connection = connect(&self.url()).await;
        let mut command = redis::cmd("INFO");
        let info: String = command.arg("server").query_async(&mut connection).await.unwrap();
        let id = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        id.unwrap().trim().parse().unwrap()
    }

    /// Kills the server immediately, without saving.
    pub fn kill(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }

    /// Restarts the killed server, empty, on the same port.
    pub async fn restart(&mut self) {
        self.child = spawn(&self.program, self.port, &self.arguments, &self.directory);
        self.wait_until_up().await;
    }

    async fn wait_until_up(&self) {
        let what = format!("the private {} answers (is it installed?)", self.program);
        eventually(&what, async || connection(&self.url()).await.is_ok()).await;
    }
}

/// Returns a free port below the ephemeral range, so that no connection takes the port of
/// a killed server. The port 10,000 above it is free too, because a cluster's node also
/// listens there.
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

/// Starts a server that runs until this end of its stdin closes, so that it also ends
/// with a killed test process, which drops nothing.
pub(crate) fn spawn_guarded(command: &[&str]) -> Child {
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
