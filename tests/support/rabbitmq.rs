//! A virtual host of its own for each test, on the real broker, and the
//! management API to look and to interfere with. Nothing is left behind.

use std::time::{Duration, Instant};

use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties};
use lockkeeper::plan::connection::RabbitmqSettings;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

/// The broker's management API, as an administrator.
#[derive(Clone)]
pub struct Management {
    client: reqwest::Client,
    url: String,
    username: String,
    password: String,
}

/// A virtual host that is removed with everything in it when dropped.
pub struct Vhost {
    pub name: String,
    pub management: Management,
    settings: RabbitmqSettings,
    users: std::sync::Mutex<Vec<String>>,
}

/// How the administrator reaches the broker that every test uses.
pub fn administrator() -> RabbitmqSettings {
    let amqp = super::environment::variable("AMQP_URL");
    let management = super::environment::variable("RABBITMQ_MANAGEMENT_URL");
    RabbitmqSettings::from_urls(&amqp, Some(&management)).unwrap()
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Letters and digits that no other test has.
pub fn unique() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Waits until `condition` holds, looking often; panics with `what` after 15 s.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < Duration::from_secs(15), "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Management {
    fn new(settings: &RabbitmqSettings) -> Self {
        let management = settings.management.clone().unwrap();
        // Without one, the first client panics.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            // A broker that is about to close a kept connection loses the request on it.
            client: reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap(),
            url: management.url,
            username: management.username,
            password: management.password.expose_secret().to_owned(),
        }
    }

    async fn request(&self, method: &str, path: &str, body: Option<Value>) -> Option<Value> {
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
            return None;
        }
        assert!(status.is_success(), "{path}: {status} {}", answer.text().await.unwrap());
        Some(answer.json().await.unwrap_or(Value::Null))
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
        self.request("GET", path, None).await
    }

    pub async fn put(&self, path: &str, body: Value) {
        self.request("PUT", path, Some(body)).await;
    }

    pub async fn delete(&self, path: &str) {
        self.request("DELETE", path, None).await;
    }

    /// Closes a connection as an administrator would; `false` if it is gone.
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
    /// A new virtual host in which the administrator may do everything.
    pub async fn create() -> Self {
        let mut settings = administrator();
        let management = Management::new(&settings);
        let name = format!("test-{}", unique());
        settings.vhost.clone_from(&name);
        management.put(&format!("vhosts/{name}"), json!({})).await;
        let everything = json!({"configure": ".*", "write": ".*", "read": ".*"});
        let user = encoded(&settings.username);
        management.put(&format!("permissions/{name}/{user}"), everything).await;
        Self { name, management, settings, users: std::sync::Mutex::default() }
    }

    /// How to reach this virtual host, with the management API.
    pub fn settings(&self) -> RabbitmqSettings {
        self.settings.clone()
    }

    /// How to reach it over AMQP only.
    pub fn settings_without_management(&self) -> RabbitmqSettings {
        RabbitmqSettings { management: None, ..self.settings() }
    }

    /// The address of this virtual host, for a program of its own.
    pub fn url(&self) -> String {
        let mut url = url::Url::parse(&super::environment::variable("AMQP_URL")).unwrap();
        url.set_path(&encoded(&self.name));
        url.into()
    }

    /// A user who exists until the end, with permissions here if given
    /// (configure, write, read); returns name and password.
    pub async fn user(&self, permissions: Option<[&str; 3]>) -> (String, String) {
        let (name, password) = (format!("user-{}", unique()), format!("pw-{}", unique()));
        self.users.lock().unwrap().push(name.clone());
        let user = json!({"password": password, "tags": ""});
        self.management.put(&format!("users/{name}"), user).await;
        if let Some([configure, write, read]) = permissions {
            let permissions = json!({"configure": configure, "write": write, "read": read});
            self.management.put(&format!("permissions/{}/{name}", self.name), permissions).await;
        }
        (name, password)
    }

    /// The names of all queues, in the broker's order.
    pub async fn queues(&self) -> Vec<String> {
        let path = format!("queues/{}?columns=name&disable_stats=true", self.name);
        let list = self.management.get(&path).await.unwrap();
        list.as_array().unwrap().iter().map(|q| q["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The management API's description of a queue.
    pub async fn queue(&self, name: &str) -> Option<Value> {
        self.management.get(&format!("queues/{}/{}", self.name, encoded(name))).await
    }

    /// Declares an ordinary queue.
    pub async fn declare(&self, name: &str, definition: Value) {
        let path = format!("queues/{}/{}", self.name, encoded(name));
        self.management.put(&path, definition).await;
    }

    /// Deletes a queue.
    pub async fn delete(&self, name: &str) {
        self.management.delete(&format!("queues/{}/{}", self.name, encoded(name))).await;
    }

    /// The broker's names of the connections to here whose own name ends in
    /// `suffix`. The API shows a connection only some seconds after it opened.
    pub async fn connections(&self, suffix: &str) -> Vec<String> {
        let path = format!("vhosts/{}/connections", self.name);
        let list = self.management.get(&path).await.unwrap();
        let ours = |c: &&Value| {
            c["client_properties"]["connection_name"].as_str().is_some_and(|n| n.ends_with(suffix))
        };
        let name = |c: &Value| c["name"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().filter(ours).map(name).collect()
    }

    /// A connection that is not Lockkeeper's, as a foreign client has.
    pub async fn connect(&self) -> Connection {
        let mut uri: AMQPUri = super::environment::variable("AMQP_URL").parse().unwrap();
        uri.vhost.clone_from(&self.name);
        Connection::connect_uri(uri, ConnectionProperties::default()).await.unwrap()
    }

    /// A channel on a connection of its own.
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
        // A thread of its own: a test's runtime may be shutting down, and can't
        // be blocked on from within.
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let management = Management { client: reqwest::Client::new(), ..management };
                management.delete(&format!("vhosts/{name}")).await;
                for user in users {
                    management.delete(&format!("users/{user}")).await;
                }
            });
        });
        // A failed test has said why already.
        let _ = removal.join();
    }
}
