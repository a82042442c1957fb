//! The lock delay across processes that each run for a shorter time.

use std::time::{Duration, Instant};

use lockkeeper_testkit::rabbitmq::{Vhost, eventually};

use crate::exec::commands::{Running, Scratch, WRITE, alive};
use crate::exec::{LOCK, lockkeeper, run, succeed};

#[tokio::test(flavor = "multi_thread")]
async fn short_attempts_add_up_to_one_rest_across_processes() {
    let vhost = Vhost::create().await;
    succeed(&vhost, &["semaphore", "create", LOCK, "--slots", "1", "--lock-delay", "5s"]).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let holding = lockkeeper(&vhost, &["exec", LOCK, "--", "sh", "-c", WRITE, &file]);
    let mut holding = Running::start(&scratch, "holding", holding);
    let holder = scratch.next_holder(&[]).await;
    let start = Instant::now();
    holding.signal("KILL");
    holding.code().await;
    eventually("the command is gone", async || alive(&holder).is_empty()).await;
    for attempt in 1.. {
        let outcome = run(&vhost, &["exec", LOCK, "--timeout", "2s", "--", "true"]).await;
        if outcome.code == Some(0) {
            assert!(attempt > 1, "2 s are not enough");
            break;
        }
        assert_eq!(outcome.code, Some(75), "{outcome:?}");
        assert!(attempt < 30, "the rest never ends: {outcome:?}");
    }
    assert!(start.elapsed() >= Duration::from_secs(5), "{:?}", start.elapsed());
}
