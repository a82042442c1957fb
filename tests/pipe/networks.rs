//! Slow networks: data arrives exactly once, however long it takes, including large
//! elements.

use std::time::{Duration, Instant};

use lockkeeper_testkit::narrow::Narrow;
use lockkeeper_testkit::redis::{PrivateRedis, TestQueue};

use super::{Outcome, outcome, put, run, shell, succeed};

/// A place on a private server, behind a network with this number of megabits per second.
struct Slow {
    _server: PrivateRedis,
    place: TestQueue,
    _network: Narrow,
    url: String,
}

impl Slow {
    async fn new(megabits: u64) -> Self {
        let server = PrivateRedis::start(&[]).await;
        let place = TestQueue::at(&server.url()).await;
        let network = Narrow::before(server.port(), megabits * 1_000_000).await;
        let url = format!("redis://127.0.0.1:{}/0", network.port());
        succeed(&place, "create", &["--bound", "0"]).await;
        Self { _server: server, place, _network: network, url }
    }
}

/// Returns 2,000 different lines of a kilobyte each.
fn lines() -> String {
    let lines: Vec<String> = (0..2000).map(|number| format!("{number:->1000}\n")).collect();
    lines.concat()
}

fn is_well(outcome: &Outcome) {
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn get_receives_every_line_once_over_1_mbit() {
    let slow = Slow::new(1).await;
    is_well(&put(&slow.place, &[], lines().as_bytes()).await);
    let got = run(&slow.place, "get", &["--url", &slow.url]).await;
    is_well(&got);
    assert!(got.text() == lines(), "{} bytes", got.stdout.len());
    assert_eq!(slow.place.length("").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn put_sends_every_line_once_over_1_mbit() {
    let slow = Slow::new(1).await;
    is_well(&put(&slow.place, &["--url", &slow.url], lines().as_bytes()).await);
    assert!(succeed(&slow.place, "get", &[]).await == lines().into_bytes());
}

/// The transfer takes twelve seconds. The network buffers, so the client sees no progress
/// for longer than its limit for a silent server.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_element_passes_a_slow_network_in_both_roles() {
    let slow = Slow::new(1).await;
    let element = vec![b'x'; 1_500_000];
    let began = Instant::now();
    is_well(&put(&slow.place, &["--size", "2M", "--url", &slow.url], &element).await);
    assert_eq!(slow.place.length("").await, 1);
    let got = run(&slow.place, "get", &["--raw", "--url", &slow.url]).await;
    is_well(&got);
    assert!(got.stdout == element, "{} bytes", got.stdout.len());
    assert!(began.elapsed() > Duration::from_secs(20), "the network is slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_elements_of_20_megabytes_pass_100_mbit() {
    let slow = Slow::new(100).await;
    // So that the server never has all of it in memory.
    let () = slow.place.run(&["SET", &slow.place.key(":bound"), "2"]).await;
    // Block number n consists of the letter n. A checksum is printed for each received
    // block.
    let blocks = "for n in {a..t}; do head -c 20000000 /dev/zero | tr '\\0' $n; done";
    let sums = "split -b 20000000 --filter=sha1sum";
    let expected = outcome(shell(&slow.place, &format!("{blocks} | {sums}"))).await;
    let line = format!(
        "set -o pipefail; {blocks} | lockkeeper queue put --size 20000000 jobs &
        lockkeeper queue get --raw jobs | {sums} && wait $!"
    );
    let mut command = shell(&slow.place, &line);
    command.env("REDIS_URL", &slow.url);
    let arrived = outcome(command).await;
    is_well(&arrived);
    assert_eq!(arrived.text(), expected.text());
    assert_eq!(arrived.text().lines().count(), 20);
}
