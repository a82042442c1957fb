//! The environment of measurements: a [`World`] of the tests for this run, one for the objects of
//! the bare run, and operators with the default intervals.

use std::ops::Deref;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use lockkeeper_api::Semaphore;
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_semaphore::{Broker, BrokerOptions};
use lockkeeper_testkit::built::{checkout, lockkeeper};
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::world::{Operator, PATIENCE, World};
use serde::de::DeserializeOwned;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::{CONCURRENCY, Result};

/// This run's namespaces and virtual host on the servers.
pub struct Environment {
    world: World,
    bare: World,
    /// The program `lockkeeper`, which runs the operator and commands under a lock.
    pub program: String,
}

impl Deref for Environment {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

/// Returns a Semaphore with one slot.
pub fn one_slot(name: &str) -> Result<Semaphore> {
    let body = serde_json::json!({
        "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
        "metadata": {"name": name}, "spec": {"slots": 1},
    });
    Ok(serde_json::from_value(body)?)
}

/// An admission policy with its binding, as YAML.
pub struct Policy(String);

impl Policy {
    async fn kubectl(&self, verb: &str) -> Result<()> {
        let mut kubectl = Command::new("kubectl")
            .args([verb, "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let mut input = kubectl.stdin.take().ok_or("no stdin")?;
        input.write_all(self.0.as_bytes()).await?;
        drop(input);
        if !kubectl.wait().await?.success() {
            return Err(format!("kubectl {verb} failed").into());
        }
        Ok(())
    }

    /// Removes the policy.
    pub async fn end(self) -> Result<()> {
        self.kubectl("delete").await
    }
}

impl Environment {
    /// Creates the namespaces and the virtual host. Operators run this program, or the one that was
    /// built for the benchmark.
    pub async fn new(operator: Option<&Path>) -> Self {
        Self {
            world: World::new("bench").await,
            bare: World::new("bench-bare").await,
            program: operator
                .map_or_else(|| lockkeeper().to_owned(), |path| path.display().to_string()),
        }
    }

    /// Removes the namespaces and the virtual host.
    pub async fn end(&self) {
        self.world.end().await;
        self.bare.end().await;
    }

    /// Returns the versions of the servers.
    pub async fn versions(&self) -> Result<String> {
        let kubernetes = self.client.apiserver_version().await?.git_version;
        let overview = self.management.get("overview").await.unwrap_or_default();
        let text = |key: &str| overview[key].as_str().unwrap_or("?").to_owned();
        Ok(format!(
            "Kubernetes {kubernetes}, RabbitMQ {} on Erlang {}",
            text("rabbitmq_version"),
            text("erlang_version"),
        ))
    }

    /// Returns the broker's number of Erlang processes and its memory in bytes.
    pub async fn processes_and_memory(&self) -> Result<(i64, i64)> {
        let nodes = self.management.get("nodes").await.unwrap_or_default();
        let number = |key: &str| nodes[0][key].as_i64().ok_or("the broker shows no such figure");
        Ok((number("proc_used")?, number("mem_used")?))
    }

    /// Returns settings for this run's virtual host, with the management API.
    pub fn settings(&self) -> Result<RabbitmqSettings> {
        let management = variable("RABBITMQ_MANAGEMENT_URL");
        Ok(RabbitmqSettings::from_urls(&self.amqp_url(), Some(&management))?)
    }

    /// Returns the library's handle on the broker.
    pub fn broker(&self) -> Result<Broker> {
        Ok(Broker::new(self.settings()?, BrokerOptions::default()))
    }

    /// Returns the API for this run's Semaphores.
    pub fn semaphores(&self) -> Api<Semaphore> {
        self.api()
    }

    /// Returns the API for the Semaphores of the bare run, which no operator watches.
    pub fn bare_semaphores(&self) -> Api<Semaphore> {
        self.bare.api()
    }

    /// Lets the API server add the finalizer to new Semaphores of this run's namespace, by the
    /// chart's policy. Waits until it does.
    pub async fn add_finalizers(&self) -> Result<Policy> {
        let version = self.client.apiserver_version().await?.git_version;
        let namespace = format!("watchNamespaces={{{}}}", self.namespace);
        let chart = Command::new("helm")
            .args(["template", &self.namespace])
            .arg(checkout().join("charts/lockkeeper"))
            .args(["--kube-version", &version])
            .args(["--show-only", "templates/policies/finalizer.yaml", "--set", &namespace])
            .args(["--set", "policies.addFinalizer=true"])
            .stderr(Stdio::inherit())
            .output()
            .await?;
        let policy = Policy(String::from_utf8(chart.stdout)?);
        policy.kubectl("create").await?;
        let (api, start) = (self.semaphores(), Instant::now());
        let body = one_slot("policy")?;
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        while api.create(&dry_run, &body).await?.finalizers().is_empty() {
            if start.elapsed() > PATIENCE {
                return Err("the API server does not add the finalizer".into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(policy)
    }

    /// Deletes every object and waits until all are gone. With `bare` there is no operator, so
    /// this removes the finalizers.
    pub async fn clear<K>(&self, api: &Api<K>, bare: bool) -> Result<()>
    where
        K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let objects = api.list(&ListParams::default()).await?.items;
        stream::iter(objects.iter().map(Ok))
            .try_for_each_concurrent(CONCURRENCY, |object| {
                let (api, name) = (api.clone(), object.name_any());
                async move {
                    if bare {
                        let free = serde_json::json!({"metadata": {"finalizers": null}});
                        api.patch(&name, &PatchParams::default(), &Patch::Merge(free)).await?;
                    }
                    api.delete(&name, &DeleteParams::default()).await.map(|_| ())
                }
            })
            .await?;
        let (mut left, mut since) = (usize::MAX, Instant::now());
        while left > 0 {
            let now = api.list_metadata(&ListParams::default()).await?.items.len();
            if now < left {
                (left, since) = (now, Instant::now());
            } else if since.elapsed() > PATIENCE {
                return Err(format!("{left} objects do not go away").into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Starts an operator for this namespace with the default intervals and the virtual host as
    /// its default connection. Waits until it watches.
    pub async fn operator(&self) -> Operator {
        let mut command = self.operator_command(&self.program);
        command
            .env("AMQP_URL", self.amqp_url())
            .env("RABBITMQ_MANAGEMENT_URL", variable("RABBITMQ_MANAGEMENT_URL"))
            .kill_on_drop(true);
        let operator = self.start_operator(&mut command);
        operator.until_ready().await;
        operator
    }
}

/// Runs `one` for each item, [`CONCURRENCY`] at a time.
pub async fn concurrently<T, F>(
    items: impl IntoIterator<Item = T>,
    one: impl Fn(T) -> F,
) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    stream::iter(items).map(one).buffer_unordered(CONCURRENCY).try_collect::<()>().await
}
