//! Two replicas: one acts at a time, whatever happens to it, and the locks reach the
//! desired state (hazard K2).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::proxy::{Method, Proxy, Sender};
use lockkeeper_testkit::world::{Operator, PATIENCE, World, eventually, in_a_world};
use serde_json::json;

use crate::operator::rights;

/// Grants the operators permissions on a Lease in the test's namespace: those that the
/// chart grants on the Lease of the release.
pub async fn let_in(world: &World) {
    let rule = |verbs: &[&str], names: &[&str]| {
        json!({
            "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
            "resourceNames": names, "verbs": verbs,
        })
    };
    let rules = json!([rule(&["get", "update"], &["lockkeeper"]), rule(&["create"], &[])]);
    let operators =
        json!({"kind": "ServiceAccount", "name": "lockkeeper", "namespace": "lockkeeper-system"});
    rights::give(world, "leader-election", rules, vec![operators]).await;
}

/// Starts a candidate with a quick election: a silent leader is replaced after 4 s.
pub async fn candidate(world: &World) -> Operator {
    world
        .operator_unready(&[
            "--observe-interval=1s",
            "--drift-interval=3s",
            "--leader-elect",
            &format!("--leader-election-namespace={}", world.namespace),
            "--lease-duration=4s",
            "--renew-deadline=3s",
            "--retry-period=500ms",
        ])
        .await
}

fn leads(operator: &Operator) -> bool {
    operator.logged().contains(" leading ")
}

pub async fn comes_to_lead(operator: &Operator) {
    eventually("it leads", PATIENCE, async || leads(operator)).await;
}

pub async fn stands_by(operator: &Operator) {
    let ready = async || {
        let url = format!("{}/readyz", operator.http());
        operator.logged().contains("address=")
            && reqwest::get(url).await.is_ok_and(|answer| answer.status().is_success())
    };
    eventually("it is ready", PATIENCE, async || operator.logged().contains("address=")).await;
    eventually("it is ready", PATIENCE, ready).await;
}

async fn lease(world: &World) -> (String, i32) {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), &world.namespace);
    let spec = leases.get("lockkeeper").await.unwrap().spec.unwrap();
    (spec.holder_identity.unwrap_or_default(), spec.lease_transitions.unwrap_or_default())
}

/// Makes the world's connection Secret lead through a proxy, which records every effect.
async fn watched(world: &World) -> Proxy {
    let proxy = Proxy::start().await;
    let (url, management) = (proxy.url(&world.amqp_url()), variable("RABBITMQ_MANAGEMENT_URL"));
    world.secret("rabbit", &[("amqpUri", url), ("managementUri", management)]).await;
    proxy
}

/// Returns the methods that change slots, in order.
fn effects(proxy: &Proxy) -> Vec<Method> {
    let is_effect = |method: &Method| {
        method.sender == Sender::Client
            && ["queue.declare", "queue.delete"].contains(&method.name.as_str())
            && method.queue.ends_with("-A")
    };
    proxy.seen().into_iter().filter(is_effect).collect()
}

async fn exactly(world: &World, slots: u32) {
    world.semaphore_ready("deploy").await;
    assert_eq!(world.queues().await, world.lock_queues("deploy", slots));
}

/// Starts two replicas, and a resize from 0 to `slots` that the first one has begun.
async fn amid_a_resize(world: &World, proxy: &Proxy, slots: u32) -> (Operator, Operator) {
    let_in(world).await;
    let first = candidate(world).await;
    comes_to_lead(&first).await;
    let second = candidate(world).await;
    stands_by(&second).await;
    world.semaphore("deploy", "slots: 0").await;
    world.semaphore_ready("deploy").await;
    world.semaphore("deploy", &format!("slots: {slots}")).await;
    let start = Instant::now();
    while effects(proxy).len() < 20 {
        assert!(start.elapsed() < PATIENCE, "no resize begins");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (first, second)
}

/// Fails if a connection of the first one changed anything after the second one began.
fn one_at_a_time(effects: &[Method], opened_before: usize) {
    let is_old = |method: &&Method| method.connection <= opened_before;
    let old: Vec<_> = effects.iter().take_while(is_old).collect();
    let mixed: Vec<_> = effects[old.len()..].iter().filter(is_old).take(3).collect();
    assert!(mixed.is_empty(), "the old leader acted concurrently with the new one: {mixed:?}");
    assert!(old.len() >= 20, "it was not in the middle of the resize: {}", old.len());
    assert!(effects.len() > old.len(), "the new one found nothing left to do");
}

#[tokio::test]
async fn of_two_replicas_one_acts_and_the_other_is_ready_and_follows_at_once() {
    in_a_world("leader", async |world| {
        let_in(&world).await;
        let mut first = candidate(&world).await;
        comes_to_lead(&first).await;
        let (holder, before) = lease(&world).await;
        let second = candidate(&world).await;
        stands_by(&second).await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore_ready("deploy").await;
        assert!(!leads(&second));
        assert_eq!(lease(&world).await, (holder.clone(), before));

        // On a stop request it releases the Lease, so that no replica has to wait until
        // it expires.
        assert!(first.stop().await.success());
        comes_to_lead(&second).await;
        let (successor, transitions) = lease(&world).await;
        assert_ne!(successor, holder);
        assert!(transitions > before, "{transitions}");
        world.semaphore("deploy", "slots: 4").await;
        exactly(&world, 4).await;
    })
    .await;
}

#[tokio::test]
async fn a_leader_killed_in_a_resize_is_followed_by_one_that_ends_with_exactly_the_slots() {
    in_a_world("leader-killed", async |world| {
        let proxy = watched(&world).await;
        let (mut first, second) = amid_a_resize(&world, &proxy, 1500).await;
        let opened = proxy.connections_opened();
        first.kill().await;
        comes_to_lead(&second).await;
        exactly(&world, 1500).await;
        one_at_a_time(&effects(&proxy), opened);
    })
    .await;
}

#[tokio::test]
async fn a_leader_paused_in_a_resize_does_nothing_when_it_wakes() {
    in_a_world("leader-paused", async |world| {
        let proxy = watched(&world).await;
        let (mut first, second) = amid_a_resize(&world, &proxy, 1500).await;
        let opened = proxy.connections_opened();
        first.signal("STOP");
        comes_to_lead(&second).await;
        // The broker has not closed the old one's connection yet, which holds its mutex.
        // The new one waits for that. Methods that the old one had sent before have been
        // performed.
        let asleep = effects(&proxy).len();
        let late: BTreeSet<usize> =
            effects(&proxy)[20..].iter().map(|method| method.connection).collect();
        assert!(late.iter().all(|connection| *connection <= opened), "{late:?}");
        first.signal("CONT");
        let ended = tokio::time::timeout(PATIENCE, first.ended()).await.unwrap();
        assert!(!ended.success(), "losing the Lease is an error");
        assert!(first.logged().contains("was lost"), "and why");
        exactly(&world, 1500).await;
        let effects = effects(&proxy);
        one_at_a_time(&effects, opened);
        let woken = effects.iter().filter(|method| method.connection <= opened).count();
        // The methods in flight when it was suspended: at most a batch.
        assert!(woken <= asleep + 16, "{woken} after {asleep}");
    })
    .await;
}
