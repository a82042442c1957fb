//! The wait queue that the Python clients share with ours: each is woken by the other, which
//! the requests at a proxy show, because a waiter also finds a free slot without that.

use std::process::Stdio;

use lockkeeper_semaphore::{Client, Permit};
use lockkeeper_testkit::proxy::{Method, Proxy, Sender};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio::task::JoinHandle;

use super::{EXCLUSIVE_CONSUMER, GUIDELINE, MUTEX, Script};
use crate::client::{any, quick};

#[tokio::test(flavor = "multi_thread")]
async fn the_guideline_s_client_waits_in_turn() {
    waits_in_turn(GUIDELINE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mutex_client_waits_in_turn() {
    waits_in_turn(MUTEX).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exclusive_consumer_client_waits_in_turn() {
    waits_in_turn(EXCLUSIVE_CONSUMER).await;
}

/// A wait in the wait queue, behind an earlier waiter, and woken instead of polling.
async fn waits_in_turn(script: Script) {
    let vhost = Vhost::create().await;
    script.resize(&vhost, 1).await;
    let (first, last) = (script.lock(&vhost), script.lock(&vhost));
    let permit = first.try_acquire(&any()).await.unwrap();
    let last = tokio::spawn(async move { last.acquire(&any()).await.unwrap() });
    eventually("ours waits", async || waiters(&vhost).await == 1).await;
    let proxy = Proxy::start().await;
    let mut command = script.command(&vhost, "60", "echo held; read end");
    command.env("AMQP_URL", proxy.url(&vhost.url())).stdin(Stdio::piped());
    let mut theirs = command.spawn().unwrap();
    eventually("theirs waits", async || waiters(&vhost).await == 2).await;
    // Of equal priority, so the one that has waited longer comes first.
    permit.release().await.unwrap();
    let permit = last.await.unwrap();
    eventually("only theirs waits", async || waiters(&vhost).await == 1).await;
    proxy.reset();
    permit.release().await.unwrap();
    script.is_held(&vhost).await;
    let before = sent_between_wake_up_and_claim(&proxy);
    // The rest of a search at most. A client that finds the slot itself searches twice.
    assert!(before.len() <= 1, "it was woken, and searched: {before:?}");
    // Theirs wakes ours.
    let next = ours_next(script, &vhost).await;
    drop(theirs.stdin.take());
    next.acquires_when_woken().await;
    assert_eq!(theirs.wait().await.unwrap().code(), Some(1), "the end of its input");
}

async fn waiters(vhost: &Vhost) -> usize {
    // The first waiter of a mutex declares it.
    let Some(queue) = vhost.queue("ci.deploy-W").await else { return 0 };
    queue["consumer_details"].as_array().map_or(0, Vec::len)
}

/// A client of ours that waits.
pub(super) struct Next {
    proxy: Proxy,
    acquiring: JoinHandle<Permit>,
}

/// Lets a client of ours wait, alone.
pub(super) async fn ours_next(script: Script, vhost: &Vhost) -> Next {
    eventually("no client waits", async || waiters(vhost).await == 0).await;
    let proxy = Proxy::start().await;
    let client = Client::new(proxy.settings(vhost.settings()), quick());
    let lock = client.semaphore(script.name());
    let acquiring = tokio::spawn(async move { lock.acquire(&any()).await.unwrap() });
    eventually("ours waits", async || waiters(vhost).await == 1).await;
    proxy.reset();
    Next { proxy, acquiring }
}

impl Next {
    /// Waits until it has the slot, and asserts that a wake-up came first. It would also find
    /// the slot without one, after some seconds.
    pub(super) async fn acquires_when_woken(self) {
        let permit = self.acquiring.await.unwrap();
        sent_between_wake_up_and_claim(&self.proxy);
        permit.release().await.unwrap();
    }
}

/// Returns what the client behind this proxy sent after its wake-up, until it claimed the slot.
fn sent_between_wake_up_and_claim(proxy: &Proxy) -> Vec<Method> {
    let seen = proxy.seen();
    // Before it claims a slot, it consumes only from the wait queue.
    let woken = seen.iter().position(|method| method.name == "basic.deliver");
    let claimed = seen.iter().position(|method| method.fields.exclusive);
    let (Some(woken), Some(claimed)) = (woken, claimed) else {
        panic!("it was not woken, or claimed nothing: {seen:?}");
    };
    assert!(woken < claimed, "it was woken afterwards: {seen:?}");
    let sent = seen[woken..claimed].iter();
    sent.filter(|method| method.sender == Sender::Client).cloned().collect()
}
