//! A thousand idle locks on one connection, five thousand in `make soak`: their cost for
//! the operator, the API server and the broker (docs/scale.md). dev/test runs it alone.

mod queues;
mod slots;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::ListParams;
use lockkeeper_api::Semaphore;
use lockkeeper_testkit::audit::Reader;
use lockkeeper_testkit::environment::{self, processor_time};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::world::{Kind, PATIENCE, World, eventually, in_a_world, is_ready};

/// Returns the number of locks, and the limit of the operator's memory: its own pages
/// (`RssAnon`) and those of its program together, in MiB.
fn size() -> (usize, u64) {
    if environment::is_soak() { (5000, 150) } else { (1000, 90) }
}

/// Number of concurrent applies.
const APPLIED_AT_ONCE: usize = 16;

/// Duration of the measurement: three observations of each object, one of them a sweep.
const REST: Duration = Duration::from_secs(30);

/// Limits of the operator's cost.
mod limit {
    /// Requests to the API server per second, besides watches.
    pub const REQUESTS: f64 = 1.0;
    /// AMQP methods per second for each lock, in both directions.
    pub const METHODS: f64 = 0.4;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_locks_at_rest_cost_little_memory_few_requests_and_few_methods() {
    let (objects, memory) = size();
    in_a_world("scale", async |world| {
        let proxy = Proxy::start().await;
        let url = proxy.url(&world.amqp_url());
        let management = environment::variable("RABBITMQ_MANAGEMENT_URL");
        let secret = [("amqpUri", url), ("managementUri", management)];
        world.secret("rabbit", &secret).await;

        // With the default intervals.
        let mut operator = world.operator_with(&[]).await;
        let start = Instant::now();
        let applied = futures::stream::iter(0..objects).map(|i| {
            let world = &world;
            async move { world.semaphore(&format!("lock-{i}"), "slots: 1").await }
        });
        applied.buffer_unordered(APPLIED_AT_ONCE).for_each(async |_| {}).await;
        all_ready::<Semaphore>(&world, objects).await;
        let took = start.elapsed();
        let (own, program) = environment::memory(operator.pid());
        assert!(own + program <= memory, "{own} + {program} MiB with all made");
        // It would be busy with the events of five thousand objects for ten minutes.
        operator.stop().await;
        let operator = world.operator_with(&[]).await;
        at_rest().await;

        proxy.reset();
        let (mut log, busy) = (Reader::from_here(), processor_time(operator.pid()));
        tokio::time::sleep(REST).await;
        let mut kinds = BTreeMap::<_, usize>::new();
        for method in proxy.seen() {
            *kinds.entry(method.name).or_default() += 1;
        }
        let methods = kinds.values().sum();
        let requests = log.read();
        let requests = requests.iter().filter(|r| {
            r.is_by_an_operator() && r.verb() != "watch" && r.resource() != "leases"
        });
        let busy = processor_time(operator.pid()).saturating_sub(busy);
        let a_second = |count: usize| f64::from(u32::try_from(count).unwrap()) / REST.as_secs_f64();
        let (requests, methods) = (a_second(requests.count()), a_second(methods));
        let (own, program) = environment::memory(operator.pid());
        // Written past the test runner, which hides the output of successful tests.
        let _ = writeln!(
            std::io::stderr(),
            "{objects} semaphores, Ready in {took:.1?}; at rest: {own} MiB and {program} MiB of program, {requests:.2} API requests/s, {methods:.0} AMQP methods/s, {:.1} % of a core",
            100.0 * busy.as_secs_f64() / REST.as_secs_f64()
        );
        assert!(own + program <= memory, "{own} + {program} MiB");
        assert!(requests <= limit::REQUESTS, "{requests} API requests/s");
        let most = limit::METHODS * f64::from(u32::try_from(objects).unwrap());
        assert!(methods <= most, "{methods} AMQP methods/s: {kinds:?}");
        // Not because nothing was observed.
        assert!(methods >= most / 4.0, "{methods} AMQP methods/s {kinds:?}");
        world.kill_operators().await;
    })
    .await;
}

async fn all_ready<K: Kind>(world: &World, objects: usize) {
    eventually("all are Ready", PATIENCE * 6, async || {
        let mut ready = 0;
        let mut params = ListParams::default().limit(500);
        loop {
            let page = world.api::<K>().list(&params).await.unwrap();
            ready += page.items.iter().filter(|object| is_ready(*object)).count();
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break,
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        ready == objects
    })
    .await;
}

/// Waits until nothing has been written for longer than a status write may be delayed.
async fn at_rest() {
    let mut log = Reader::from_here();
    let mut since = Instant::now();
    eventually("nothing is written any more", PATIENCE * 2, || {
        if log.read().iter().any(|r| r.is_by_an_operator() && r.is_write()) {
            since = Instant::now();
        }
        std::future::ready(since.elapsed() > Duration::from_secs(15))
    })
    .await;
}
