//! Many processes on one semaphore: no slot ever has two holders, every process ends, and
//! nothing is left over. The processes run the example `guarded`, which writes to a
//! register that only a slot's holder may write to.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_plan::naming::Protocol;
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::protocols::{TestLock, options, with_protocols};
use lockkeeper_testkit::rabbitmq::{unique, within};
use tokio::process::{Child, Command};

use crate::client::{held, name, resize};

with_protocols! {
    every {
        of_64_processes_no_two_ever_hold_the_same_slot_and_all_end,
    }
}

const PROCESSES: usize = 64;
const SLOTS: u32 = 5;

/// Number of acquisitions of each process. `make soak` sets more.
fn times() -> u32 {
    if is_soak() { 1_000 } else { 15 }
}

fn start(place: &TestLock, registers: &Path) -> Child {
    Command::new(built::example("guarded"))
        .args([name().as_str(), &times().to_string()])
        .arg(registers)
        .args(options(place.protocol).get(1))
        .env("AMQP_URL", place.url())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn of_64_processes_no_two_ever_hold_the_same_slot_and_all_end(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    resize(&place, SLOTS).await;
    let registers = std::env::temp_dir().join(format!("lockkeeper-{}", unique()));
    std::fs::create_dir(&registers).unwrap();
    let begun = Instant::now();
    let processes: Vec<Child> = (0..PROCESSES).map(|_| start(&place, &registers)).collect();
    let all = futures::future::join_all(processes.into_iter().map(Child::wait_with_output));
    // Half a minute on an idle machine. A loaded one was seen to need three times that.
    let limit = Duration::from_mins(4) + Duration::from_secs(2) * times();
    let all = tokio::time::timeout(limit, all).await.expect("every process ends");
    println!(
        "{protocol:?}: {PROCESSES} processes × {} on {SLOTS} slots: {:?}",
        times(),
        begun.elapsed()
    );
    for output in all {
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}", output.status);
    }
    assert_eq!(std::fs::read_dir(&registers).unwrap().count(), 0);
    std::fs::remove_dir(&registers).unwrap();
    assert_eq!(held(&place).await, Vec::<u32>::new());
    // The management API shows a connection that is opened and closed at once until the
    // broker cleans up its metrics, every 2 minutes.
    within(Duration::from_mins(5), "no connection is left", async || {
        place.connections("hold").await.is_empty() && place.connections("probe").await.is_empty()
    })
    .await;
    // Slots, and the auxiliary queues of administrators.
    let left = place.queues().await;
    let foreign: Vec<_> = left.iter().filter(|queue| queue.ends_with("-B")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
