//! Python clients, ours and others on one lock: no slot is held twice.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_plan::naming::{Profile, Protocol};
use lockkeeper_semaphore::Verdict;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use lockkeeper_testkit::register::Register;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{EXCLUSIVE_CONSUMER, GUIDELINE, MINIMAL, MUTEX, Script, TOKEN};
use crate::client::any;
use crate::client::foreign::their_rounds;

/// How often each Python client acquires.
const ROUNDS: usize = 6;

/// The minimal client, with the queue names of amqp-locks-python.
const MINIMAL_AMQP_LOCKS_PYTHON: Script = Script {
    options: &["--profile", "amqp-locks-python"],
    protocol: Protocol::ExclusiveQueue(Profile::AmqpLocksPython),
    ..MINIMAL
};

/// A lock, and the resource that it guards.
struct Shared {
    script: Script,
    vhost: Arc<Vhost>,
    register: Arc<Register>,
    /// Cancelled when the Python clients are done. The other clients acquire until then.
    done: CancellationToken,
}

impl Shared {
    async fn create(script: Script, slots: u32) -> Arc<Self> {
        let vhost = Arc::new(Vhost::create().await);
        script.resize(&vhost, slots).await;
        let (register, done) = (Arc::new(Register::create()), CancellationToken::new());
        Arc::new(Self { script, vhost, register, done })
    }

    /// Acquires by a Python client, each time by a new process.
    async fn python(self: Arc<Self>) {
        let line = r#"in=$PLACE/${LOCK_SLOT:-${LOCK_TOKEN_ID:-1}}
            mkdir "$in" && sleep 0.02 && rmdir "$in""#;
        for _ in 0..ROUNDS {
            let mut command = self.script.command(&self.vhost, "60", line);
            command.env("PLACE", self.register.folder());
            let code = command.status().await.unwrap().code();
            assert_eq!(code, Some(0), "two holders, or none");
        }
    }

    async fn ours(self: Arc<Self>) {
        let lock = self.script.lock(&self.vhost);
        while !self.done.is_cancelled() {
            let permit = lock.acquire_timeout(&any(), Duration::from_mins(1)).await.unwrap();
            let which = permit.slot().map(u64::from).or(permit.token_id());
            // A mutex has neither.
            let entered = self.register.enter(which.unwrap_or(1));
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..40))).await;
            assert_eq!(permit.verify().await, Ok(Verdict::Held));
            drop(entered);
            permit.release().await.unwrap();
        }
    }

    async fn amqp_locks_python(self: Arc<Self>) {
        while !self.done.is_cancelled() {
            let rounds = their_rounds(Arc::clone(&self.vhost), Arc::clone(&self.register));
            Box::pin(rounds).await;
        }
    }

    /// Waits for the Python clients, then for the others.
    async fn end(&self, python: JoinSet<()>, others: JoinSet<()>) {
        let all = async {
            python.join_all().await;
            self.done.cancel();
            others.join_all().await;
        };
        tokio::time::timeout(Duration::from_secs(100), all).await.expect("all end");
        assert!(self.register.entries() > ROUNDS, "the others have hardly held a slot");
        let nothing_is_held = async || self.script.held(&self.vhost).await.is_empty();
        eventually("nothing stays held", nothing_is_held).await;
    }
}

async fn never_hold_the_same(script: Script, slots: u32) {
    let shared = Shared::create(script, slots).await;
    let (mut python, mut ours) = (JoinSet::new(), JoinSet::new());
    for _ in 0..3 {
        python.spawn(Arc::clone(&shared).python());
        ours.spawn(Arc::clone(&shared).ours());
    }
    shared.end(python, ours).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guideline_s_client_and_ours_never_hold_the_same_slot() {
    never_hold_the_same(GUIDELINE, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exclusive_consumer_client_and_ours_never_hold_the_same_slot() {
    never_hold_the_same(EXCLUSIVE_CONSUMER, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_client_and_ours_never_hold_the_same_token() {
    never_hold_the_same(TOKEN, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mutex_client_and_ours_never_hold_the_mutex_together() {
    never_hold_the_same(MUTEX, 1).await;
}

/// The minimal client comes after the waiters. So there is a slot more than clients of ours.
#[tokio::test(flavor = "multi_thread")]
async fn the_minimal_client_and_ours_never_hold_the_same_slot() {
    never_hold_the_same(MINIMAL, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minimal_client_amqp_locks_python_and_ours_never_hold_the_same_slot() {
    let shared = Shared::create(MINIMAL_AMQP_LOCKS_PYTHON, 3).await;
    let (mut minimal, mut others) = (JoinSet::new(), JoinSet::new());
    for _ in 0..2 {
        minimal.spawn(Arc::clone(&shared).python());
        others.spawn(Arc::clone(&shared).ours());
        others.spawn(Arc::clone(&shared).amqp_locks_python());
    }
    shared.end(minimal, others).await;
}
