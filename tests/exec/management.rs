//! A management API with wrong or endless answers, and its effects on a process that uses
//! it.

use lockkeeper_testkit::environment::peak;
use lockkeeper_testkit::management_proxy::{Fault, ManagementProxy};
use lockkeeper_testkit::rabbitmq::Vhost;

use crate::exec::{LOCK, Outcome, lockkeeper, outcome, succeed};

/// Maximum memory in MiB that an answer may cost.
const MOST: u64 = 16;

async fn by(api: &ManagementProxy, vhost: &Vhost, arguments: &[&str]) -> Outcome {
    let mut command = lockkeeper(vhost, arguments);
    command.env("RABBITMQ_MANAGEMENT_URL", &api.url);
    outcome(command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_answer_costs_a_process_no_more_than_16_mib() {
    let vhost = Vhost::create().await;
    let api = ManagementProxy::start().await;
    succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "2"]).await;
    let mut looking = lockkeeper(&vhost, &["semaphore", "wait", LOCK, "--until", "taken"]);
    let mut looking = looking.env("RABBITMQ_MANAGEMENT_URL", &api.url).spawn().unwrap();
    let pid = looking.id().unwrap();
    api.until_met(3).await;
    let before = peak(pid);
    api.suffer(Fault::Endless);
    // The last request may still be in progress.
    api.until_met(4).await;
    let after = peak(pid);
    assert!(after - before <= MOST, "from {before} to {after} MiB");
    assert!(after > before + 4, "{before} to {after} MiB: nothing was read");
    looking.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_not_found_neither_deletes_nor_hides_a_slot() {
    let vhost = Vhost::create().await;
    let api = ManagementProxy::start().await;
    succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "31"]).await;
    api.suffer(Fault::Answer(404));
    let grown = by(&api, &vhost, &["semaphore", "grow", LOCK, "1"]).await;
    assert_eq!(grown.code, Some(0), "{grown:?}");
    assert!(grown.stderr.contains("has 32 slots, before 31"), "{grown:?}");
    let counted = by(&api, &vhost, &["semaphore", "count", LOCK, "-o", "json"]).await;
    assert!(counted.stdout.contains("\"slots\": 32"), "{counted:?}");
    let fine = by(&api, &vhost, &["semaphore", "verify", LOCK]).await;
    assert_eq!(fine.code, Some(0), "{fine:?}");
    let gone = by(&api, &vhost, &["semaphore", "destroy", LOCK, "--yes"]).await;
    assert!(gone.stderr.contains("is gone with 32 slots"), "{gone:?}");
    assert_eq!(vhost.queues().await, [""; 0]);
}
