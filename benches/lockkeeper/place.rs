//! The environment of measurements: a namespace and a vhost for this run, and an operator
//! process with the chart's service account.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use lockkeeper_api::Semaphore;
use lockkeeper_plan::connection::RabbitmqSettings;
use lockkeeper_semaphore::{Broker, BrokerOptions};
use serde::de::DeserializeOwned;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::{CONCURRENCY, Result};

/// Time limit for any step of the run.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// This run's servers, and its namespaces on them.
pub struct Place {
    /// The API server, as administrator.
    pub client: Client,
    /// This run's namespace, which is also the name of its vhost.
    pub name: String,
    /// The broker in this run's vhost.
    pub amqp_url: String,
    /// The broker's management API.
    pub management_url: String,
    directory: String,
    operator_kubeconfig: String,
    /// The program `lockkeeper`, which runs the operator and commands under a lock.
    pub program: PathBuf,
}

/// Returns the name of the bare run's namespace.
fn bare(name: &str) -> String {
    format!("{name}-bare")
}

/// Returns a Semaphore with one slot.
pub fn one_slot(name: &str) -> Result<Semaphore> {
    let body = serde_json::json!({
        "apiVersion": "lockkeeper.dev/v1alpha1", "kind": "Semaphore",
        "metadata": {"name": name}, "spec": {"slots": 1},
    });
    Ok(serde_json::from_value(body)?)
}

/// Returns an address that nothing listens on.
pub fn free_address() -> Result<String> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
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

fn variable(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| format!("{name} is not set: run make bench").into())
}

impl Place {
    /// Creates the namespaces and the vhost. Operators run this program, or the one that was built
    /// for the benchmark.
    pub async fn new(operator: Option<&Path>) -> Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        variable("KUBECONFIG")?;
        let name = format!("bench-{:08x}", rand::random::<u32>());
        let base = variable("AMQP_URL")?;
        let at = base.rfind('/').ok_or("AMQP_URL names no vhost")?;
        let place = Self {
            client: Client::try_default().await?,
            amqp_url: format!("{}/{name}", &base[..at]),
            name,
            management_url: variable("RABBITMQ_MANAGEMENT_URL")?,
            directory: variable("LOCKKEEPER_DEV_DIR")?,
            operator_kubeconfig: variable("LOCKKEEPER_OPERATOR_KUBECONFIG")?,
            program: operator.unwrap_or(Path::new(env!("CARGO_BIN_EXE_lockkeeper"))).to_owned(),
        };
        // Without a provider, reqwest's first client panics.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let vhost = format!("{}/api/vhosts/{}", place.management_url, place.name);
        reqwest::Client::new().put(vhost).send().await?.error_for_status()?;
        let namespaces: Api<Namespace> = Api::all(place.client.clone());
        for name in [&place.name, &bare(&place.name)] {
            let namespace = serde_json::from_value(serde_json::json!({"metadata": {"name": name}}));
            namespaces.create(&PostParams::default(), &namespace?).await?;
        }
        Ok(place)
    }

    /// Removes the namespaces and the vhost.
    pub async fn end(self) -> Result<()> {
        let vhost = format!("{}/api/vhosts/{}", self.management_url, self.name);
        reqwest::Client::new().delete(vhost).send().await?.error_for_status()?;
        let namespaces: Api<Namespace> = Api::all(self.client);
        for name in [&self.name, &bare(&self.name)] {
            namespaces.delete(name, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    /// Asks the broker's management API.
    async fn ask(&self, path: &str) -> Result<serde_json::Value> {
        let url = format!("{}/api/{path}", self.management_url);
        Ok(reqwest::Client::new().get(url).send().await?.json().await?)
    }

    /// Returns the versions of the servers.
    pub async fn versions(&self) -> Result<String> {
        let kubernetes = self.client.apiserver_version().await?.git_version;
        let overview = self.ask("overview").await?;
        let text = |key: &str| overview[key].as_str().unwrap_or("?").to_owned();
        Ok(format!(
            "Kubernetes {kubernetes}, RabbitMQ {} on Erlang {}",
            text("rabbitmq_version"),
            text("erlang_version"),
        ))
    }

    /// Returns the broker's number of Erlang processes and its memory in bytes.
    pub async fn processes_and_memory(&self) -> Result<(i64, i64)> {
        let nodes = self.ask("nodes").await?;
        let number = |key: &str| nodes[0][key].as_i64().ok_or("the broker shows no such figure");
        Ok((number("proc_used")?, number("mem_used")?))
    }

    /// Returns the library's handle on the broker.
    pub fn broker(&self) -> Result<Broker> {
        let settings = RabbitmqSettings::from_urls(&self.amqp_url, Some(&self.management_url))?;
        Ok(Broker::new(settings, BrokerOptions::default()))
    }

    /// Opens a connection without the library.
    pub async fn amqp(&self) -> Result<lapin::Connection> {
        let properties = lapin::ConnectionProperties::default();
        Ok(lapin::Connection::connect(&self.amqp_url, properties).await?)
    }

    /// Returns the path of a log in the directory of the servers.
    pub fn log(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    /// Returns the API for this run's Semaphores.
    pub fn semaphores(&self) -> Api<Semaphore> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Returns the API for the Semaphores of the bare run, which no operator watches.
    pub fn bare_semaphores(&self) -> Api<Semaphore> {
        Api::namespaced(self.client.clone(), &bare(&self.name))
    }

    /// Lets the API server add the finalizer to new Semaphores of this run's namespace, by the
    /// chart's policy. Waits until it does.
    pub async fn add_finalizers(&self) -> Result<Policy> {
        let version = self.client.apiserver_version().await?.git_version;
        let namespace = format!("watchNamespaces={{{}}}", self.name);
        let chart = Command::new("helm")
            .args(["template", &self.name, "charts/lockkeeper", "--kube-version", &version])
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

    /// Starts an operator for this namespace with the default intervals and the vhost as
    /// its default connection. Waits until it watches.
    pub async fn operator(&self) -> Result<Operator> {
        let (address, log) = (free_address()?, self.log("bench-operator.log"));
        let mut command = Command::new(&self.program);
        command
            .args(["operator", "--http-address", &address, "--watch-namespace", &self.name])
            .env("KUBECONFIG", &self.operator_kubeconfig)
            .env("AMQP_URL", &self.amqp_url)
            .env("RABBITMQ_MANAGEMENT_URL", &self.management_url)
            .env_remove("REDIS_URL");
        Operator::start(&mut command, address, &log, (" watching ", 2)).await
    }
}

/// An operator process, ended when dropped.
pub struct Operator {
    child: Child,
    address: String,
}

impl Operator {
    /// Starts a process that serves metrics at this address. Waits until its log contains
    /// the phrase this often.
    pub async fn start(
        command: &mut Command,
        address: String,
        log: &str,
        (phrase, count): (&str, usize),
    ) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(log)?)
            .kill_on_drop(true)
            .spawn()?;
        let start = Instant::now();
        while std::fs::read_to_string(log)?.matches(phrase).count() < count {
            if start.elapsed() > PATIENCE {
                let error = format!("no {count} lines with {phrase:?} in the operator's log {log}");
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { child, address })
    }

    /// Returns in MiB: resident memory, the part of it that is not the program's file,
    /// and its peak.
    pub fn memory(&self) -> Result<[f64; 3]> {
        let pid = self.child.id().ok_or("the operator has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mib = |key: &str| -> Result<f64> {
            let line = status.lines().find(|line| line.starts_with(key));
            let kib: f64 =
                line.and_then(|l| l.split_whitespace().nth(1)).ok_or("no such line")?.parse()?;
            Ok(kib / 1024.0)
        };
        Ok([mib("VmRSS:")?, mib("RssAnon:")?, mib("VmHWM:")?])
    }

    /// Returns its metrics, in the text format of Prometheus.
    pub async fn metrics(&self) -> Result<String> {
        let url = format!("http://{}/metrics", self.address);
        Ok(reqwest::get(url).await?.error_for_status()?.text().await?)
    }

    /// Processor time used so far, in seconds.
    pub fn processor_seconds(&self) -> Result<f64> {
        let pid = self.child.id().ok_or("the operator has ended")?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let after_name = stat.rsplit(") ").next().unwrap_or_default();
        let fields: Vec<&str> = after_name.split(' ').collect();
        // utime and stime, in the 100 ticks a second that Linux shows to users.
        Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
    }

    /// Requests the process to stop, and waits until it has.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(pid) = self.child.id() {
            Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
        }
        tokio::time::timeout(PATIENCE, self.child.wait()).await??;
        Ok(())
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
