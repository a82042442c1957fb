//! An idle operator writes nothing, needs little memory, and serves its state over HTTP.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::ResourceExt;
use kube::api::ListParams;
use lapin::options::QueueDeleteOptions;
use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::audit::Reader;
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::{memory, random, variable};
use lockkeeper_testkit::world::{Kind, PATIENCE, World, eventually, in_a_world, is_ready, signal};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

const SEMAPHORES: usize = 150;
const QUEUES: usize = 50;

/// Time in which nothing may be written.
const REST: Duration = Duration::from_secs(120);

#[tokio::test]
async fn an_operator_with_200_objects_at_rest_writes_nothing_for_two_minutes() {
    in_a_world("idle", async |world| {
        let mut start = Reader::from_here();
        // With the default intervals.
        let operator = world.operator_with(&[]).await;
        join_all((0..SEMAPHORES).map(|i| {
            let world = &world;
            async move { world.semaphore(&format!("lock-{i}"), "slots: 2").await }
        }))
        .await;
        join_all((0..QUEUES).map(|i| {
            let world = &world;
            async move { world.queue(&format!("queue-{i}"), "bound: 10").await }
        }))
        .await;
        all_ready(&world).await;
        // At least a finalizer and a status for each: the count below detects writes.
        let busy = writes(&world, &mut start);
        assert!(busy.len() >= 2 * (SEMAPHORES + QUEUES), "only {} writes", busy.len());
        at_rest(&world).await;

        let mut rest = Reader::from_here();
        let before = versions(&world).await;
        let looked = looks(&operator.logged());
        tokio::time::sleep(REST).await;
        let written = writes(&world, &mut rest);
        assert!(written.is_empty(), "{} writes, such as {}", written.len(), written[0]);
        assert_eq!(versions(&world).await, before, "an object was changed");

        // Not because nothing was observed: every object was, at least once in each 30 s.
        let looks = looks(&operator.logged()) - looked;
        assert!(looks >= 4 * (SEMAPHORES + QUEUES), "only {looks} looks in {REST:?}");
        let (own, program) = memory(operator.pid());
        println!("{looks} looks at 200 objects, no write; {own} MiB and {program} MiB of program");

        // The operator still reacts when something happens.
        let channel = world.amqp().await.create_channel().await.unwrap();
        let queue = format!("{}.lock-7-2-A", world.namespace);
        channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
        let repaired = async || world.queues().await.contains(&queue);
        eventually("the missing slot is made again", PATIENCE * 2, repaired).await;
        let reported = || std::future::ready(!writes(&world, &mut rest).is_empty());
        eventually("and the status reports it", PATIENCE, reported).await;
    })
    .await;
}

/// Returns the operators' writes in this world since the log was last read.
fn writes(world: &World, log: &mut Reader) -> Vec<String> {
    log.read()
        .into_iter()
        .filter(|request| {
            request.is_by_an_operator()
                && request.is_write()
                && request.namespace() == world.namespace
        })
        .map(|request| request.line)
        .collect()
}

/// Returns how often an object was observed without a change.
fn looks(log: &str) -> usize {
    log.matches("nothing new").count()
}

async fn all_ready(world: &World) {
    async fn unready<K: Kind>(world: &World, expected: usize) -> usize {
        let all = world.api::<K>().list(&ListParams::default()).await.unwrap();
        expected - all.items.iter().filter(|object| is_ready(*object)).count()
    }
    eventually("all objects are Ready", PATIENCE * 3, async || {
        unready::<Semaphore>(world, SEMAPHORES).await
            + unready::<PressureQueue>(world, QUEUES).await
            == 0
    })
    .await;
}

/// Waits until nothing has been written for longer than a status write may be delayed.
async fn at_rest(world: &World) {
    let mut log = Reader::from_here();
    let mut since = Instant::now();
    eventually("nothing is written any more", PATIENCE * 2, || {
        if !writes(world, &mut log).is_empty() {
            since = Instant::now();
        }
        std::future::ready(since.elapsed() > Duration::from_secs(15))
    })
    .await;
}

/// Returns the version of every object, by kind and name.
async fn versions(world: &World) -> BTreeMap<(String, String), String> {
    async fn of<K: Kind>(world: &World) -> Vec<((String, String), String)> {
        let all = world.api::<K>().list(&ListParams::default()).await.unwrap();
        let version = |object: &K| {
            let key = (K::kind(&()).into_owned(), object.name_any());
            (key, object.resource_version().unwrap())
        };
        all.items.iter().map(version).collect()
    }
    let all: BTreeMap<_, _> =
        of::<Semaphore>(world).await.into_iter().chain(of::<PressureQueue>(world).await).collect();
    assert_eq!(all.len(), SEMAPHORES + QUEUES);
    all
}

#[tokio::test]
async fn a_ready_operator_says_so_over_http_and_ends_at_a_signal() {
    in_a_world("http", async |world| {
        let mut operator = world.operator().await;
        let http = operator.http();
        eventually("/readyz answers 200", PATIENCE, async || get(&http, "readyz").await.0 == 200)
            .await;
        assert_eq!(get(&http, "healthz").await, (200, "ok\n".to_owned()));
        assert_eq!(get(&http, "readyz").await, (200, "ok\n".to_owned()));
        let (nowhere, _) = get(&http, "nothing").await;
        assert_eq!(nowhere, 404);
        assert!(operator.stop().await.success(), "SIGTERM is a clean end");
    })
    .await;
}

#[tokio::test]
async fn without_an_api_server_the_operator_waits_and_is_ready_once_there_is_one() {
    // A port without a listener.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut alone = Alone::start(port).await;
    let http = alone.http();
    assert_eq!(get(&http, "healthz").await.0, 200);
    let (code, text) = get(&http, "readyz").await;
    assert_eq!(code, 503, "{text}");
    for missing in ["semaphores", "pressurequeues"] {
        assert!(text.contains(missing), "{text}");
    }
    let tries = || alone.logged().matches("cannot list").count();
    eventually("it tries again and again", PATIENCE, async || tries() >= 4).await;
    assert_eq!(get(&http, "healthz").await.0, 200, "it stays up");
    assert_eq!(get(&http, "readyz").await.0, 503, "and not ready");

    let forwarding = tokio::spawn(forward(port));
    eventually("/readyz answers 200", PATIENCE, async || get(&http, "readyz").await.0 == 200).await;
    assert!(alone.terminate().await.success());
    forwarding.abort();
}

#[tokio::test]
async fn an_operator_that_never_found_an_api_server_ends_at_a_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut alone = Alone::start(port).await;
    let log = alone.log.clone();
    eventually("it has tried", PATIENCE, async || {
        std::fs::read_to_string(&log).unwrap().contains("cannot list")
    })
    .await;
    assert!(alone.terminate().await.success(), "{}", alone.logged());
}

/// Returns status and body of a response.
async fn get(http: &str, path: &str) -> (u16, String) {
    let answer = reqwest::get(format!("{http}/{path}")).await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// Returns the API server's address in a kubeconfig.
fn api_server() -> String {
    let text = std::fs::read_to_string(variable("LOCKKEEPER_OPERATOR_KUBECONFIG")).unwrap();
    let config: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    config["clusters"][0]["cluster"]["server"].as_str().unwrap().to_owned()
}

/// Forwards connections to a local port to the API server.
async fn forward(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let server = api_server().trim_start_matches("https://").to_owned();
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let server = server.clone();
        tokio::spawn(async move {
            let mut server = TcpStream::connect(server).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

/// An operator that looks for the API server at a port that the test chooses, and watches
/// an unused namespace.
struct Alone {
    child: Child,
    log: String,
}

impl Alone {
    async fn start(port: u16) -> Self {
        let logs = format!("{}/operator-logs", variable("LOCKKEEPER_DEV_DIR"));
        std::fs::create_dir_all(&logs).unwrap();
        let name = format!("alone-{}", random());
        let log = format!("{logs}/{name}.log");
        let kubeconfig = format!("{}/{name}.kubeconfig", env!("CARGO_TARGET_TMPDIR"));
        let original = std::fs::read_to_string(variable("LOCKKEEPER_OPERATOR_KUBECONFIG")).unwrap();
        let changed = original.replace(&api_server(), &format!("https://127.0.0.1:{port}"));
        assert_ne!(changed, original);
        std::fs::write(&kubeconfig, changed).unwrap();
        let child = Command::new(built::lockkeeper())
            .args(["operator", "--http-address", "127.0.0.1:0", "--watch-namespace", &name])
            .env("KUBECONFIG", &kubeconfig)
            .env_remove("AMQP_URL")
            .env_remove("RABBITMQ_MANAGEMENT_URL")
            .env_remove("REDIS_URL")
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let alone = Self { child, log };
        let started = async || alone.logged().contains("operator starts");
        eventually("the operator starts", PATIENCE, started).await;
        std::fs::remove_file(&kubeconfig).unwrap();
        alone
    }

    fn http(&self) -> String {
        let log = self.logged();
        let at = log.split("address=").nth(1).unwrap();
        format!("http://{}", at.split_whitespace().next().unwrap())
    }

    fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    async fn terminate(&mut self) -> std::process::ExitStatus {
        signal(self.child.id().unwrap(), "TERM");
        tokio::time::timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap()
    }
}
