//! Many processes at one semaphore: no slot ever has two holders, everyone ends,
//! and nothing is left. The processes run the example `guarded`, which writes to a
//! register that only a slot's holder may write to.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use crate::support::rabbitmq::{Vhost, eventually, unique};
use crate::{held, name, resize};

const PROCESSES: usize = 64;
const SLOTS: u32 = 5;

/// How often each process takes a slot: `make soak` asks for more.
fn times() -> u32 {
    if std::env::var_os("LOCKKEEPER_SOAK").is_some() { 1_000 } else { 100 }
}

fn guarded() -> PathBuf {
    // Beside the directory of the test programs.
    let own = std::env::current_exe().unwrap();
    let program = own.parent().unwrap().parent().unwrap().join("examples/guarded");
    assert!(program.exists(), "{} is missing: cargo build --examples", program.display());
    program
}

fn start(vhost: &Vhost, registers: &Path) -> Child {
    Command::new(guarded())
        .args([name().as_str(), &times().to_string()])
        .arg(registers)
        .env("AMQP_URL", vhost.url())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_64_processes_no_two_ever_hold_the_same_slot_and_all_end() {
    let vhost = Vhost::create().await;
    resize(&vhost, SLOTS).await;
    let registers = std::env::temp_dir().join(format!("lockkeeper-{}", unique()));
    std::fs::create_dir(&registers).unwrap();
    let begun = Instant::now();
    let processes: Vec<Child> = (0..PROCESSES).map(|_| start(&vhost, &registers)).collect();
    let all = futures::future::join_all(processes.into_iter().map(Child::wait_with_output));
    let limit = Duration::from_secs(60) + Duration::from_secs(2) * times();
    let all = tokio::time::timeout(limit, all).await.expect("every process ends");
    println!("{PROCESSES} processes × {} on {SLOTS} slots: {:?}", times(), begun.elapsed());
    for output in all {
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}", output.status);
    }
    assert_eq!(std::fs::read_dir(&registers).unwrap().count(), 0);
    std::fs::remove_dir(&registers).unwrap();
    assert_eq!(held(&vhost).await, Vec::<u32>::new());
    eventually("no connection is left", async || {
        vhost.connections("hold").await.is_empty() && vhost.connections("probe").await.is_empty()
    })
    .await;
    // Slots, and what administrators make beside them.
    let left = vhost.queues().await;
    let foreign: Vec<_> = left.iter().filter(|queue| queue.ends_with("-B")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
