//! Each seeded bug is found, as the property that it violates and with its cause. In `make soak`
//! from three seeds.

use lockkeeper_prove::controls::{bugs, control};
use lockkeeper_prove::history::Rules;
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::rabbitmq::Vhost;

use super::run_options;

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
    for seed in 1..=if is_soak() { 3 } else { 1 } {
        for bug in bugs(rules) {
            let start = std::time::Instant::now();
            let control = control(&run_options(&vhost, rules, seed), Some(bug)).await.unwrap();
            println!("{bug:?}, seed {seed}: {:?}, {} found", start.elapsed(), control.found.len());
            assert!(control.is_right(), "seed {seed}: {control:?}");
        }
        let correct = control(&run_options(&vhost, rules, seed), None).await.unwrap();
        assert!(correct.is_right(), "seed {seed}: {correct:?}");
    }
}
