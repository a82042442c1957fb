//! The chart in a separate cluster. Helm installs, upgrades and uninstalls it. The
//! Deployment's program makes the examples ready with the permissions that the chart
//! grants. There are no nodes, so the test acts as the kubelet: it starts the program
//! with exactly the Deployment's arguments and environment and with the service account's
//! token.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::{random, signal, variable};
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::world::next_database;
use serde_json::{Value, json};

use crate::chart::given;
use crate::chart::teams::a_team_gets_locks;

const RELEASE: &str = "lockkeeper-system";
/// Any free port of this machine.
const FREE: &str = "127.0.0.1:0";
const ACCOUNT: &str = "system:serviceaccount:lockkeeper-system:lockkeeper";

/// Every example that is a Semaphore or a `PressureQueue`.
const EXAMPLES: [&str; 7] = [
    "semaphore/deploy.yaml",
    "semaphore/migrate.yaml",
    "semaphore/exclusive-consumer.yaml",
    "semaphore/token.yaml",
    "semaphore/full.yaml",
    "pressure-queue/frames.yaml",
    "pressure-queue/full.yaml",
];

/// A cluster, a virtual host and a Redis database for this test only.
pub(super) struct Installation {
    pub(super) cluster: OwnServer,
    vhost: String,
    database: i64,
}

impl Installation {
    pub(super) async fn new() -> Self {
        let place = Self {
            cluster: OwnServer::kubernetes().await,
            vhost: format!("chart-{}", random()),
            database: next_database(),
        };
        place.manage("PUT");
        place
    }

    /// Creates or deletes the virtual host.
    fn manage(&self, method: &str) {
        Self::broker(method, &format!("vhosts/{}", self.vhost), &json!({}));
    }

    /// Sends a request to the broker's management API.
    pub(super) fn broker(method: &str, path: &str, body: &Value) {
        let url = format!("{}/api/{path}", variable("RABBITMQ_MANAGEMENT_URL"));
        let body = body.to_string().replace('"', "\\\"");
        // Not as an argument, which would show the password to all users.
        let desired = format!(
            "url = \"{url}\"\nrequest = {method}\ndata = \"{body}\"\nheader = \"content-type: application/json\"\nsilent\nfail\nnoproxy = \"*\"\n"
        );
        given(Command::new("curl").args(["--config", "-"]), &desired).unwrap();
    }

    pub(super) fn vhost(&self) -> &str {
        &self.vhost
    }

    pub(super) fn amqp_url(&self) -> String {
        let url = variable("AMQP_URL");
        format!("{}/{}", &url[..url.rfind('/').unwrap()], self.vhost)
    }

    pub(super) fn redis_url(&self) -> String {
        let url = variable("REDIS_URL");
        format!("{}/{}", &url[..url.rfind('/').unwrap()], self.database)
    }

    pub(super) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let own = |name: &str| self.cluster.directory().join(name);
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("KUBECONFIG", self.cluster.variable("KUBECONFIG"))
            .env("KUBECACHEDIR", own("kubectl-cache"));
        for kind in ["CONFIG", "CACHE", "DATA"] {
            command.env(format!("HELM_{kind}_HOME"), own("helm"));
        }
        command
    }

    pub(super) fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        given(&mut self.command("kubectl", arguments), input)
    }

    fn helm(&self, arguments: &[&str], values: &str) {
        given(&mut self.command("helm", arguments), values).unwrap();
    }

    pub(super) fn apply(&self, namespace: &str, text: &str) {
        let arguments = ["apply", "--server-side", "--namespace", namespace, "-f", "-"];
        self.kubectl(&arguments, text).unwrap();
    }

    /// Creates a Secret, as a user would write it from those in examples/.
    fn secret(&self, namespace: &str, name: &str, data: &Value) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data,
        });
        self.apply(namespace, &secret.to_string());
    }

    /// Returns the examples, adapted to this test's servers.
    fn examples(&self) -> String {
        EXAMPLES.iter().fold(String::new(), |all, file| {
            let file = format!("{}/examples/{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(file).unwrap();
            let text = text.replace("vhost: prod", &format!("vhost: {}", self.vhost));
            let text = text.replace("database: 0", &format!("database: {}", self.database));
            // No RabbitMQ cluster operator runs here.
            let objects: Vec<&str> = text
                .split("\n---\n")
                .filter(|object| !object.contains("name: on-a-cluster"))
                .collect();
            format!("{all}\n---\n{}", objects.join("\n---\n"))
        })
    }

    /// Applies the examples in a namespace and waits until all are ready.
    fn examples_become_ready(&self, namespace: &str) {
        let management = variable("RABBITMQ_MANAGEMENT_URL");
        let rabbitmq = json!({"amqpUri": self.amqp_url(), "managementUri": management});
        self.secret(namespace, "rabbitmq", &rabbitmq);
        self.secret(namespace, "redis", &json!({"uri": self.redis_url()}));
        self.apply(namespace, &self.examples());
        let wait = ["wait", "--for=condition=Ready", "semaphores,pressurequeues", "--all"];
        let rest = ["--timeout=120s", "--namespace", namespace];
        let said = self.kubectl(&[&wait[..], &rest].concat(), "").unwrap_or_else(|error| {
            let get = ["get", "locks", "-o", "wide", "--namespace", namespace];
            panic!("{error}\n{}", self.kubectl(&get, "").unwrap())
        });
        assert_eq!(said.lines().count(), 8, "{said}");
    }

    fn examples_are_deleted(&self, namespace: &str) {
        let delete = ["delete", "semaphores,pressurequeues", "--all", "--timeout=120s"];
        self.kubectl(&[&delete[..], &["--namespace", namespace]].concat(), "").unwrap();
    }

    /// Starts the Deployment's program with its settings resolved as by the kubelet.
    pub(super) fn started(&self) -> Operator {
        let get = ["get", "deployment", "lockkeeper", "--namespace", RELEASE, "-o", "json"];
        let deployment: Value = serde_json::from_str(&self.kubectl(&get, "").unwrap()).unwrap();
        let pod = &deployment["spec"]["template"]["spec"];
        let account = pod["serviceAccountName"].as_str().unwrap();
        let container = &pod["containers"][0];
        let arguments = container["args"].as_array().unwrap();
        // The directory in which the checks of the whole run look for logs.
        let logs = PathBuf::from(variable("LOCKKEEPER_DEV_DIR")).join("operator-logs");
        std::fs::create_dir_all(&logs).unwrap();
        let log = logs.join(format!("installed-{}.log", random()));
        let mut operator = Command::new(built::lockkeeper());
        operator
            .args(arguments.iter().map(|argument| argument.as_str().unwrap()))
            .env_clear()
            .env("KUBECONFIG", self.kubeconfig_of(account))
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap());
        for variable in container["env"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            // A pod has an address of its own, where each port is free.
            let has_address = name == "LOCKKEEPER_HTTP_ADDRESS";
            let value = if has_address { FREE.to_owned() } else { self.value_of(variable, pod) };
            operator.env(name, value);
        }
        let operator = Operator { process: operator.spawn().unwrap(), log };
        let start = Instant::now();
        while !operator.logged().contains("PressureQueue")
            || !operator.logged().contains("watching")
        {
            assert!(start.elapsed() < Duration::from_mins(2), "{}", operator.logged());
            std::thread::sleep(Duration::from_millis(100));
        }
        operator
    }

    /// Returns the value of an environment variable. For a mount's path, this is the
    /// directory with the Secret's files.
    fn value_of(&self, variable: &Value, pod: &Value) -> String {
        let source = &variable["valueFrom"];
        if let Some(field) = source["fieldRef"]["fieldPath"].as_str() {
            return match field {
                "metadata.namespace" => RELEASE.to_owned(),
                "metadata.name" => "lockkeeper-0".to_owned(),
                other => panic!("{other}"),
            };
        }
        let value = variable["value"].as_str().unwrap();
        let mounts = pod["containers"][0]["volumeMounts"].as_array().into_iter().flatten();
        let Some(mount) = mounts.into_iter().find(|mount| mount["mountPath"] == value) else {
            return value.to_owned();
        };
        let mut volumes = pod["volumes"].as_array().unwrap().iter();
        let volume = volumes.find(|volume| volume["name"] == mount["name"]).unwrap();
        let secret = volume["secret"]["secretName"].as_str().unwrap();
        let get = ["get", "secret", secret, "--namespace", RELEASE, "-o", "json"];
        let secret: Secret = serde_json::from_str(&self.kubectl(&get, "").unwrap()).unwrap();
        let directory = self.cluster.directory().join("mounted");
        std::fs::create_dir_all(&directory).unwrap();
        for (key, value) in secret.data.unwrap_or_default() {
            std::fs::write(directory.join(key), value.0).unwrap();
        }
        directory.to_str().unwrap().to_owned()
    }

    fn kubeconfig_of(&self, account: &str) -> PathBuf {
        let create = ["create", "token", account, "--namespace", RELEASE];
        let token = self.kubectl(&create, "").unwrap();
        let mut config: Value = serde_yaml::from_str(
            &std::fs::read_to_string(self.cluster.variable("KUBECONFIG")).unwrap(),
        )
        .unwrap();
        config["users"][0]["user"] = json!({"token": token.trim()});
        config["contexts"][0]["context"]["namespace"] = RELEASE.into();
        let file = self.cluster.directory().join("operator.kubeconfig");
        std::fs::write(&file, config.to_string()).unwrap();
        file
    }

    /// Returns the number of the operator's requests, and those that the API server
    /// rejected.
    fn refused(&self) -> (usize, Vec<String>) {
        let log = std::fs::read_to_string(self.cluster.directory().join("audit.log")).unwrap();
        let by_operator = log.lines().filter(|line| line.contains(ACCOUNT));
        let refused = |line: &&str| line.contains("\"authorization.k8s.io/decision\":\"forbid\"");
        (by_operator.clone().count(), by_operator.filter(refused).map(ToOwned::to_owned).collect())
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        // Also after a failure of the test, when its queues still exist.
        if std::thread::panicking() {
            let _ =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.manage("DELETE")));
        } else {
            self.manage("DELETE");
        }
        let flush = ["-u", &self.redis_url(), "--no-auth-warning", "FLUSHDB"];
        let _ = Command::new("redis-cli").args(flush).stdout(Stdio::null()).status();
    }
}

/// The operator's process. Killed when dropped.
pub(super) struct Operator {
    process: Child,
    log: PathBuf,
}

impl Operator {
    fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Stops the process as the deletion of its pod does.
    pub(super) fn stop(mut self) {
        signal(self.process.id(), "TERM");
        assert!(self.process.wait().unwrap().success(), "{}", self.logged());
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns empty definitions of the Prometheus operator's kinds.
fn prometheus_definitions() -> String {
    let kinds = [("servicemonitors", "ServiceMonitor"), ("prometheusrules", "PrometheusRule")];
    let definition = |(plural, kind): (&str, &str)| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind, "singular": kind.to_lowercase()},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    }},
                }],
            },
        })
        .to_string()
    };
    kinds.map(definition).join("\n---\n")
}

#[tokio::test]
async fn installed_by_helm_the_operator_makes_the_examples_ready_by_the_charts_rights() {
    let place = Installation::new().await;
    for namespace in [RELEASE, "team-a", "team-b"] {
        place.kubectl(&["create", "namespace", namespace], "").unwrap();
    }
    let management = variable("RABBITMQ_MANAGEMENT_URL");
    let connections = json!({
        "amqpUrl": place.amqp_url(), "managementUrl": management, "redisUrl": place.redis_url(),
    });
    place.secret(RELEASE, "lockkeeper-default-connections", &connections);
    let values = |more: &str| {
        format!(
            "defaultConnections: {{secretName: lockkeeper-default-connections}}\n\
             observeInterval: 1s\ndriftInterval: 3s\n{more}"
        )
    };
    let chart = ["charts/lockkeeper", "--namespace", RELEASE, "-f", "-"];

    place.helm(&[&["install", "lockkeeper"][..], &chart].concat(), &values(""));
    let operator = place.started();
    place.examples_become_ready("team-a");
    place.examples_are_deleted("team-a");
    a_team_gets_locks(&place);
    operator.stop();

    // The same in one namespace, where the operator has no ClusterRole any more.
    place.kubectl(&["apply", "-f", "-"], &prometheus_definitions()).unwrap();
    let established = ["wait", "--for=condition=Established", "customresourcedefinitions", "--all"];
    place.kubectl(&established, "").unwrap();
    let monitored = "metrics: {serviceMonitor: {enabled: true, renderMode: failIfMissing}}";
    let scoped = values(&format!("watchNamespaces: [team-a]\n{monitored}\n"));
    place.helm(&[&["upgrade", "lockkeeper"][..], &chart].concat(), &scoped);
    place.kubectl(&["get", "servicemonitor", "lockkeeper", "--namespace", RELEASE], "").unwrap();
    for gone in ["clusterrole", "clusterrolebinding"] {
        let said = place.kubectl(&["get", gone, "lockkeeper"], "").unwrap_err();
        assert!(said.contains("NotFound"), "{said}");
    }
    let operator = place.started();
    place.apply("team-b", &place.examples());
    place.examples_become_ready("team-a");
    let seen = ["get", "locks", "--namespace", "team-b", "-o", "jsonpath={.items[*].status}"];
    assert_eq!(place.kubectl(&seen, "").unwrap(), "", "team-b is not watched");

    let (requests, refused) = place.refused();
    assert!(requests > 50, "the audit log contains the operator: {requests}");
    assert!(refused.is_empty(), "{} requests, such as {}", refused.len(), refused[0]);

    operator.stop();

    // Created locks stay: an accidental uninstall must not delete them.
    place.helm(&["uninstall", "lockkeeper", "--namespace", RELEASE], "");
    for namespace in ["team-a", "team-b"] {
        let left = ["get", "locks", "--namespace", namespace, "-o", "name"];
        assert_eq!(place.kubectl(&left, "").unwrap().lines().count(), 8);
    }
}
