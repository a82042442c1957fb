//! The client with the fewest requirements, `examples/python/minimal_client.py`: it polls
//! for slots, verifies in its only thread, and rejects locks with records. See `sharing`
//! for locks that it shares with other clients.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_plan::semaphore::{DesiredSlots, sweep_to};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio_util::sync::CancellationToken;

use super::waiting::ours_next;
use super::{
    ENDED, MINIMAL, announces_itself_and_exits_as_its_command_does,
    ends_its_command_when_it_loses_but_not_when_it_drains, printed_a_word,
};
use crate::client::{SOON, any, broker};

#[tokio::test(flavor = "multi_thread")]
async fn the_minimal_client_announces_itself_and_exits_as_its_command_does() {
    announces_itself_and_exits_as_its_command_does(MINIMAL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minimal_client_ends_its_command_when_it_loses_but_not_when_it_drains() {
    ends_its_command_when_it_loses_but_not_when_it_drains(MINIMAL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minimal_client_needs_only_four_methods_of_its_driver() {
    let (vhost, proxy) = (Vhost::create().await, Proxy::start().await);
    MINIMAL.resize(&vhost, 1).await;
    // Long enough for a verification.
    let code = MINIMAL.through(&proxy, &vhost, "sleep 1.5").status().await.unwrap().code();
    assert_eq!(code, Some(0));
    let sent: BTreeSet<String> = proxy.methods().into_iter().map(|method| method.name).collect();
    let is_own = |name: &&String| !name.starts_with("connection.") && !name.starts_with("channel.");
    let own: Vec<&String> = sent.iter().filter(is_own).collect();
    let expected = [
        "basic.publish",
        "confirm.select",
        "queue.declare",
        "queue.declare(passive)",
        "queue.delete",
    ];
    assert_eq!(own, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minimal_client_ends_its_command_when_the_broker_is_silent() {
    let (vhost, proxy) = (Vhost::create().await, Proxy::start().await);
    MINIMAL.resize(&vhost, 1).await;
    let mut losing = MINIMAL.through(&proxy, &vhost, ENDED).spawn().unwrap();
    printed_a_word(&mut losing).await;
    proxy.freeze(true);
    let frozen = Instant::now();
    let lost = losing.wait_with_output().await.unwrap();
    assert_eq!((lost.status.code(), lost.stdout), (Some(80), b"ended\n".to_vec()));
    assert!(frozen.elapsed() < SOON, "{:?}", frozen.elapsed());
    // Without heartbeats the broker does not notice the end of a client that is cut off.
    assert_eq!(MINIMAL.held(&vhost).await, [1]);
    proxy.freeze(false);
    eventually("the slot is free", async || MINIMAL.held(&vhost).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minimal_client_rejects_a_lock_with_records() {
    let vhost = Vhost::create().await;
    let desired = DesiredSlots { records: Some(Duration::ZERO), ..DesiredSlots::new(1) };
    let (broker, name, stop) = (broker(&vhost), MINIMAL.name(), CancellationToken::new());
    broker.converge(&name, desired, sweep_to(desired, 0), false, &stop).await.unwrap();
    let next_token = async || {
        let permit = MINIMAL.lock(&vhost).acquire(&any()).await.unwrap();
        let token = permit.fence().unwrap();
        permit.release().await.unwrap();
        token
    };
    let first = next_token().await;
    let rejected = MINIMAL.output(&vhost, "echo ran").await.unwrap();
    let reason = String::from_utf8(rejected.stderr).unwrap();
    assert_eq!((rejected.status.code(), rejected.stdout), (Some(69), Vec::<u8>::new()), "{reason}");
    assert!(reason.contains("it has records, which this client cannot replace"), "{reason}");
    assert_eq!(next_token().await, first + 1);
}

/// It cannot join the wait queue. It lets the clients there go first, and wakes them.
#[tokio::test(flavor = "multi_thread")]
async fn the_minimal_client_comes_after_the_waiters_and_wakes_them() {
    let vhost = Vhost::create().await;
    MINIMAL.resize(&vhost, 1).await;
    let wait_for = async |count| {
        eventually("as many clients wait", async || {
            let queue = vhost.queue("ci.deploy-W").await.unwrap();
            queue["consumer_details"].as_array().map_or(0, Vec::len) == count
        })
        .await;
    };
    let start = || {
        let lock = MINIMAL.lock(&vhost);
        tokio::spawn(async move { lock.acquire_timeout(&any(), SOON).await.unwrap() })
    };
    let mut permit = MINIMAL.lock(&vhost).try_acquire(&any()).await.unwrap();
    let mut command = MINIMAL.command(&vhost, "60", "echo begun; read end");
    let mut minimal = command.stdin(Stdio::piped()).spawn().unwrap();
    let polls = async || !vhost.connections(MINIMAL.connection).await.is_empty();
    eventually("the minimal client polls", polls).await;
    for _ in 0..3 {
        wait_for(0).await;
        let next = start();
        wait_for(1).await;
        permit.release().await.unwrap();
        permit = next.await.unwrap();
    }
    permit.release().await.unwrap();
    printed_a_word(&mut minimal).await;
    let next = ours_next(MINIMAL, &vhost).await;
    drop(minimal.stdin.take());
    next.acquires_when_woken().await;
    assert_eq!(minimal.wait().await.unwrap().code(), Some(1), "the end of its input");
}
