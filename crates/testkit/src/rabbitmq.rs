//! A separate virtual host for each test, on the real broker, and the management API to
//! observe it and to interfere. Everything is removed at the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, Queue};
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_semaphore::BrokerOptions;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::environment::{pause, provide_tls, variable};

/// Returns a queue as the broker shows it now: the ready messages and the consumers. It must exist.
pub async fn look(channel: &Channel, queue: &str) -> Queue {
    let passive = QueueDeclareOptions::default().passive();
    channel.queue_declare(queue.into(), passive, FieldTable::default()).await.unwrap()
}

/// The broker's management API, with an administrator's credentials.
#[derive(Clone)]
pub struct Management {
    client: reqwest::Client,
    url: String,
    username: String,
    password: String,
}

/// A virtual host that is removed with everything in it when dropped.
pub struct Vhost {
    /// Its name.
    pub name: String,
    /// The management API of its broker.
    pub management: Management,
    settings: RabbitmqSettings,
    url: String,
    users: std::sync::Mutex<Vec<String>>,
}

/// Returns an administrator's settings for the shared broker.
pub fn administrator() -> RabbitmqSettings {
    administrator_of("")
}

/// Returns an administrator's settings for the broker whose variables end in this.
fn administrator_of(suffix: &str) -> RabbitmqSettings {
    let [amqp, management] =
        ["AMQP_URL", "RABBITMQ_MANAGEMENT_URL"].map(|name| variable(&format!("{name}{suffix}")));
    RabbitmqSettings::from_urls(&amqp, Some(&management)).unwrap()
}

/// Returns options with which an administrator outlasts a busy broker.
pub fn patient() -> BrokerOptions {
    BrokerOptions::default().with_operation_timeout(Duration::from_mins(1))
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns unique letters and digits.
pub fn unique() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Waits until `condition` holds, with frequent checks. Panics with `what` after a
/// minute.
pub async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    within(Duration::from_mins(1), what, condition).await;
}

/// Like [`eventually`], with this limit.
pub async fn within(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < limit, "never happened: {what}");
        tokio::time::sleep(pause(start, Duration::from_millis(20), Duration::from_millis(200)))
            .await;
    }
}

impl Management {
    /// Uses the management API of these settings.
    pub fn new(settings: &RabbitmqSettings) -> Self {
        let management = settings.management.clone().unwrap();
        provide_tls();
        Self {
            // No pooled connections: a request is lost if the broker is about to close
            // its connection.
            client: reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap(),
            url: management.url,
            username: management.username,
            password: management.password.expose_secret().to_owned(),
        }
    }

    async fn request(&self, method: &str, path: &str, body: Option<Value>) -> Option<Value> {
        self.try_request(method, path, body).await.unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// Like [`Management::request`]. Returns a refusal as text.
    async fn try_request(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Option<Value>, String> {
        let method = method.parse().unwrap();
        let mut request = self
            .client
            .request(method, format!("{}/api/{path}", self.url))
            .basic_auth(&self.username, Some(&self.password));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.expect("the management API answers");
        let status = answer.status();
        if status.as_u16() == 404 {
            return Ok(None);
        }
        if !status.is_success() {
            return Err(format!("{path}: {status} {}", answer.text().await.unwrap()));
        }
        Ok(Some(answer.json().await.unwrap_or(Value::Null)))
    }

    /// Creates a virtual host. A node of a cluster that has just come back may not have heard of
    /// it when it shall start it (`no_such_vhost`), and does not try again. Then the virtual host is
    /// deleted and created.
    async fn put_vhost(&self, name: &str) {
        let path = format!("vhosts/{}", encoded(name));
        eventually("each node starts the virtual host", async || {
            match self.try_request("PUT", &path, Some(json!({}))).await {
                Ok(_) => true,
                Err(refusal) if refusal.contains("no_such_vhost") => {
                    self.delete(&path).await;
                    false
                }
                Err(refusal) => panic!("{refusal}"),
            }
        })
        .await;
    }

    /// Returns the answer for this path, or `None` if there is no such object.
    pub async fn get(&self, path: &str) -> Option<Value> {
        self.request("GET", path, None).await
    }

    /// Creates or replaces the object of this path.
    pub async fn put(&self, path: &str, body: Value) {
        self.request("PUT", path, Some(body)).await;
    }

    /// Deletes the object of this path.
    pub async fn delete(&self, path: &str) {
        self.request("DELETE", path, None).await;
    }

    /// Closes a connection as an administrator would. Returns `false` if it does not
    /// exist.
    pub async fn close_connection(&self, name: &str, reason: &str) -> bool {
        let url = format!("{}/api/connections/{}", self.url, encoded(name));
        let answer = self
            .client
            .delete(url)
            .basic_auth(&self.username, Some(&self.password))
            .header("X-Reason", reason)
            .send()
            .await
            .expect("the management API answers");
        answer.status().is_success()
    }
}

impl Vhost {
    /// Creates a virtual host in which the administrator has all permissions.
    pub async fn create() -> Self {
        Self::create_on("").await
    }

    /// Creates one whose name ends in this text.
    pub async fn create_ending(end: &str) -> Self {
        Self::create_named(format!("test-{}{end}", unique()), "").await
    }

    /// Creates one on the broker whose variables end in this.
    pub async fn create_on(suffix: &str) -> Self {
        Self::create_named(format!("test-{}", unique()), suffix).await
    }

    async fn create_named(name: String, suffix: &str) -> Self {
        let mut settings = administrator_of(suffix);
        let management = Management::new(&settings);
        settings.vhost.clone_from(&name);
        management.put_vhost(&name).await;
        let everything = json!({"configure": ".*", "write": ".*", "read": ".*"});
        let user = encoded(&settings.username);
        management.put(&format!("permissions/{}/{user}", encoded(&name)), everything).await;
        let mut url = url::Url::parse(&variable(&format!("AMQP_URL{suffix}"))).unwrap();
        url.set_path(&encoded(&name));
        let url = url.into();
        Self { name, management, settings, url, users: std::sync::Mutex::default() }
    }

    /// Returns settings for this virtual host, with the management API.
    pub fn settings(&self) -> RabbitmqSettings {
        self.settings.clone()
    }

    /// Returns settings for this virtual host with AMQP only.
    pub fn settings_without_management(&self) -> RabbitmqSettings {
        RabbitmqSettings { management: None, ..self.settings() }
    }

    /// Returns the URL of this virtual host, for a separate program.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Creates a user that exists until the end, with permissions here if given
    /// (configure, write, read). Returns name and password.
    pub async fn user(&self, permissions: Option<[&str; 3]>) -> (String, String) {
        let (name, password) = (format!("user-{}", unique()), format!("pw-{}", unique()));
        self.users.lock().unwrap().push(name.clone());
        let user = json!({"password": password, "tags": ""});
        self.management.put(&format!("users/{name}"), user).await;
        if let Some([configure, write, read]) = permissions {
            let permissions = json!({"configure": configure, "write": write, "read": read});
            self.management
                .put(&format!("permissions/{}/{name}", encoded(&self.name)), permissions)
                .await;
        }
        (name, password)
    }

    /// Returns the names of all queues, in the broker's order.
    pub async fn queues(&self) -> Vec<String> {
        let list = self.list("name").await.unwrap();
        list.as_array().unwrap().iter().map(|q| q["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the node of each queue, which may be down. Empty if the broker cannot say.
    pub async fn nodes_of_queues(&self) -> BTreeMap<String, String> {
        let list = self.list("name,node").await.unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        list.as_array()
            .into_iter()
            .flatten()
            .map(|q| (text(&q["name"]), text(&q["node"])))
            .collect()
    }

    /// Returns these columns of all queues.
    async fn list(&self, columns: &str) -> Option<Value> {
        let path = format!("queues/{}?columns={columns}&disable_stats=true", encoded(&self.name));
        self.management.get(&path).await
    }

    /// Returns the management API's description of a queue.
    pub async fn queue(&self, name: &str) -> Option<Value> {
        self.management.get(&format!("queues/{}/{}", encoded(&self.name), encoded(name))).await
    }

    /// Declares an ordinary queue.
    pub async fn declare(&self, name: &str, definition: Value) {
        let path = format!("queues/{}/{}", encoded(&self.name), encoded(name));
        self.management.put(&path, definition).await;
    }

    /// Deletes a queue.
    pub async fn delete(&self, name: &str) {
        self.management.delete(&format!("queues/{}/{}", encoded(&self.name), encoded(name))).await;
    }

    /// Removes the messages of a queue that are not delivered to a consumer.
    pub async fn purge(&self, name: &str) {
        self.management
            .delete(&format!("queues/{}/{}/contents", encoded(&self.name), encoded(name)))
            .await;
    }

    /// Returns the broker's names of the connections to this virtual host whose own name
    /// ends in `suffix`. The API shows a connection only some seconds after it was
    /// opened.
    pub async fn connections(&self, suffix: &str) -> Vec<String> {
        let path = format!("vhosts/{}/connections", encoded(&self.name));
        let list = self.management.get(&path).await.unwrap();
        let ours = |c: &&Value| {
            c["client_properties"]["connection_name"].as_str().is_some_and(|n| n.ends_with(suffix))
        };
        let name = |c: &Value| c["name"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().filter(ours).map(name).collect()
    }

    /// Closes the connections whose own name ends in `suffix`, as an administrator would, until
    /// `done`. The API may show a connection some seconds after it was opened, and after its end.
    pub async fn close_until(
        &self,
        suffix: &str,
        reason: &str,
        mut done: impl AsyncFnMut() -> bool,
    ) {
        eventually("closing the connections has this effect", async || {
            for connection in self.connections(suffix).await {
                self.management.close_connection(&connection, reason).await;
            }
            done().await
        })
        .await;
    }

    /// Opens a connection without Lockkeeper, as a foreign client does.
    pub async fn connect(&self) -> Connection {
        Connection::connect(&self.url, ConnectionProperties::default()).await.unwrap()
    }

    /// Opens a channel on its own connection.
    pub async fn channel(&self) -> (Connection, Channel) {
        let connection = self.connect().await;
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        let management = self.management.clone();
        let name = self.name.clone();
        let users = std::mem::take(&mut *self.users.lock().unwrap());
        // In a separate thread: a test's runtime may be shutting down, and cannot be
        // blocked from within.
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let management = Management { client: reqwest::Client::new(), ..management };
                management.delete(&format!("vhosts/{}", encoded(&name))).await;
                for user in users {
                    management.delete(&format!("users/{user}")).await;
                }
            });
        });
        // A failed test has already reported the reason.
        let _ = removal.join();
    }
}
