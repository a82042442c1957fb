//! Each seeded bug is found, as the property that it violates and with its cause, from three
//! seeds.

use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_prove::controls::{bugs, control};
use lockkeeper_prove::history::{Faults, Rules, Variables};
use lockkeeper_prove::run::{RunOptions, Way};
use lockkeeper_testkit::rabbitmq::Vhost;

use super::program;

#[tokio::test(flavor = "multi_thread")]
async fn bugs_of_exclusive_queues_are_found() {
    found(Rules::ExclusiveQueue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bugs_of_exclusive_consumers_are_found() {
    found(Rules::ExclusiveConsumer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bugs_of_tokens_are_found() {
    found(Rules::Token).await;
}

async fn found(rules: Rules) {
    let vhost = Vhost::create().await;
    for seed in 1..=3 {
        for bug in bugs(rules) {
            let start = std::time::Instant::now();
            let control = control(&run(&vhost, rules, seed), Some(bug)).await.unwrap();
            println!("{bug:?}, seed {seed}: {:?}, {} found", start.elapsed(), control.found.len());
            assert!(control.is_right(), "seed {seed}: {control:?}");
        }
        let correct = control(&run(&vhost, rules, seed), None).await.unwrap();
        assert!(correct.is_right(), "seed {seed}: {correct:?}");
    }
}

/// What a control needs of a run.
fn run(vhost: &Vhost, rules: Rules, seed: u64) -> RunOptions {
    RunOptions {
        way: Way::Exec(String::new(), Variables::default()),
        second_driver: None,
        administrator: String::new(),
        url: Some(vhost.url().parse().unwrap()),
        rules,
        lock: format!("prove.control-{seed}"),
        seed,
        duration: Duration::ZERO,
        clients: 4,
        slots: 2,
        faults: Faults::SOME,
        resize_within: Duration::from_millis(600),
        program: PathBuf::from(program()),
    }
}
