//! Every shape that a command of `queue run` can have: a signal that is forwarded, or the one
//! that kills, reaches all of its processes, and its element returns to the queue.

use std::ffi::OsString;

use futures::StreamExt;
use futures::stream::iter;
use lockkeeper_testkit::built;
use lockkeeper_testkit::rabbitmq::Vhost;
use lockkeeper_testkit::redis::{TestQueue, eventually};

use crate::exec::commands::{Running, Scratch, alive_with};
use crate::exec::shapes::{JOB, SHAPES, Shape};
use crate::pipe::{fill, queue, succeed};

/// Number of cases at the same time.
const AT_ONCE: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_signal_reaches_every_process_of_a_command_of_run() {
    iter(&SHAPES).map(|(name, shape)| end(name, shape)).buffer_unordered(AT_ONCE).count().await;
}

async fn end(name: &str, shape: &Shape) {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, b"work\n").await;
    let scratch = Scratch::new();
    let vhost = Vhost::create().await;
    lock(&vhost, &scratch).await;
    let words: Vec<OsString> = shape.words(&scratch.file(""), INNER);
    let run = format!("run-{}", place.queue.prefix());
    let mut command = queue(&place, "run", &["--"]);
    command.args(words).arg(scratch.file("register"));
    command.env("JOB", JOB).env("RUN", &run).env("AMQP_URL", vhost.url());
    let mut running = Running::start(&scratch, "run", command);
    eventually("the command runs", async || !scratch.read("register").is_empty()).await;
    running.signal("TERM");
    running.until_it_says("waiting for 1 command").await;
    running.signal("TERM");
    if shape.ignores_term() {
        let lines = scratch.read("register").lines().count();
        let goes_on = async || scratch.read("register").lines().count() > lines + 5;
        eventually("it goes on", goes_on).await;
        running.signal("TERM");
    }
    assert_eq!(running.code().await, Some(143), "{name}: {}", running.said());
    let alive = alive_with(&format!("RUN={run}"));
    assert_eq!(alive, [0; 0], "{name}: {}", running.said());
    assert!(!running.said().contains("run on"), "{name}: {}", running.said());
    let seen = place.store().observe(&place.queue).await.unwrap();
    assert_eq!(seen.length + seen.in_flight, 1, "{name}: {}", running.said());
}

/// The lock of the nested `exec`.
const INNER: &str = "ci.inner";

async fn lock(vhost: &Vhost, scratch: &Scratch) {
    let program = built::lockkeeper();
    let mut create = tokio::process::Command::new(program);
    create.args(["semaphore", "create", INNER, "--slots", "1"]).env("AMQP_URL", vhost.url());
    let mut create = Running::start(scratch, "create", create);
    assert_eq!(create.code().await, Some(0), "{}", create.said());
}
