//! Servers of one tenant that send what no server sends: the operator lives, its memory has
//! a bound, each object names the cause, and another tenant's objects become Ready.

use std::time::{Duration, Instant};

use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::environment::peak;
use lockkeeper_testkit::hostile::Management;
use lockkeeper_testkit::hostile::amqp::{self, Sent, Step};
use lockkeeper_testkit::hostile::redis::{Answer, When};
use lockkeeper_testkit::world::{Kind, PATIENCE, World, in_a_world};

use crate::operator::tenancy::{
    leave, lock_by, neighbour, operator_of_both, operator_with_defaults, queue_by,
};

/// Maximum growth of the operator's memory, in MiB. The chart's limit is 256 MiB.
const GROWTH: u64 = 96;

/// Time within which another tenant's object becomes Ready, at the median. On a loaded
/// machine it may take longer without any hostile server.
const SOON: Duration = Duration::from_secs(2);

/// Returns the text by which a condition names what a broker sent. Empty where the network
/// alone shows it.
fn cause(step: Step, sent: Sent) -> &'static str {
    match (step, sent) {
        (_, Sent::Garbage | Sent::Http) => "not AMQP 0-9-1",
        (Step::Start, Sent::Nested) => "nested too deeply",
        (Step::Start, Sent::Wide) => "too many values",
        (_, Sent::EndlessFrame) => "a frame of 2147483647 bytes",
        (_, Sent::ForeignMethod) => "only clients send",
        (_, Sent::TinyFrames) => "frame_max is 4096",
        (_, Sent::FewChannels) => "channel_max is 1",
        (Step::Operation, Sent::Blocked | Sent::Deliveries) => "not asked for",
        _ => "",
    }
}

/// Waits until the object is not Ready because of its server, and names the cause. Before, it
/// may name another one: on a loaded machine, a flood can exceed a time limit first.
async fn until_refused<K: Kind>(world: &World, name: &str, what: &str, cause: &str) {
    let is_refused = |object: &K| {
        object.condition("Ready").is_some_and(|(status, reason, message)| {
            let is_servers = ["Broker", "Store", "Quota"].iter().any(|of| reason.starts_with(of));
            status == "False" && is_servers && message.contains(cause)
        })
    };
    let what = format!("refused because of {what}, with the cause {cause:?}");
    world.until(name, &what, PATIENCE, is_refused).await;
}

/// Returns the medians of the times in which new objects of each of two worlds become Ready, one
/// after the other and in turn, so that the load of the machine is the same for both.
async fn times_to_ready(worlds: [&World; 2]) -> [Duration; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..7 {
        for (world, times) in worlds.into_iter().zip(&mut times) {
            let (name, started) = (format!("later-{number}"), Instant::now());
            world.apply::<Semaphore>(&name, "{slots: 1}").await.unwrap();
            world.semaphore_ready(&name).await;
            times.push(started.elapsed());
        }
    }
    times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_servers_of_a_tenant_cost_the_operator_little_and_delay_no_other_tenant() {
    in_a_world("hostile", async |victim| {
        let evil = neighbour(&victim).await;
        let operator = operator_of_both(&victim, &evil, &[]).await;
        // Another operator, which has no hostile servers.
        let calm = neighbour(&victim).await;
        let _calm_operator = operator_with_defaults(&calm, &[]).await;
        let before = peak(operator.pid());
        let mut brokers = Vec::new();
        for (number, (step, sent)) in amqp::behaviours().into_iter().enumerate() {
            let (name, port) = (format!("broker-{number}"), amqp::start(step, sent).await);
            let uri = format!("amqp://user:password@127.0.0.1:{port}/%2f");
            evil.secret(&name, &[("amqpUri", uri)]).await;
            evil.apply::<Semaphore>(&name, &lock_by(&name, &name)).await.unwrap();
            brokers.push((name, step, sent));
        }
        let mut stores = Vec::new();
        for when in [When::BeforeLogin, When::AfterLogin] {
            for answer in Answer::ALL {
                let (name, port) = (format!("store-{}", stores.len()), answer.start(when).await);
                evil.secret(&name, &[("uri", format!("redis://user:password@127.0.0.1:{port}"))])
                    .await;
                evil.apply::<PressureQueue>(&name, &queue_by(&name, &name)).await.unwrap();
                stores.push((name, when, answer));
            }
        }
        for api in Management::ALL {
            let (name, port) = (format!("api-{api:?}").to_lowercase(), api.start().await);
            let management = format!("http://user:password@127.0.0.1:{port}");
            let uris = [("amqpUri", victim.amqp_url()), ("managementUri", management)];
            evil.secret(&name, &uris).await;
            let lock = format!("{}.{name}", evil.namespace);
            evil.apply::<Semaphore>(&name, &lock_by(&name, &lock)).await.unwrap();
        }
        let [during, elsewhere] = times_to_ready([&victim, &calm]).await;
        for (name, step, sent) in brokers {
            let what = format!("{step:?} {sent:?}");
            until_refused::<Semaphore>(&evil, &name, &what, cause(step, sent)).await;
        }
        for (name, when, answer) in stores {
            let cause = match answer {
                Answer::Silence => "",
                Answer::Garbage | Answer::Pushes => "no answer of a Redis server",
                Answer::Nested => "nested too deeply",
                _ => "an answer of more than",
            };
            let what = format!("{when:?} {answer:?}");
            until_refused::<PressureQueue>(&evil, &name, &what, cause).await;
        }
        let most = SOON.max(elsewhere * 4);
        assert!(during < most, "{during:?}, and {elsewhere:?} without the hostile servers");
        let grown = peak(operator.pid()).saturating_sub(before);
        assert!(grown < GROWTH, "it grew by {grown} MiB");
        leave(evil).await;
        leave(calm).await;
    })
    .await;
}
