//! Every interleaving of two clients on a real broker: with a shrink, and with one fault. Other
//! clients with bugs are in `controls`.

use std::process::Output;

use lockkeeper_testkit::rabbitmq::Vhost;

use super::{prove, quoted, text};

#[tokio::test(flavor = "multi_thread")]
async fn two_correct_clients_and_a_shrink_violate_nothing_in_any_interleaving() {
    let vhost = Vhost::create().await;
    let prover = quoted("lockkeeper-prove");
    let straw = format!("{prover} straw --protocol ExclusiveQueue --overshoot 1");
    let steps = ["steps", "--driver", &straw, "--administrator", &straw, "--resize", "shrink"];
    let steps = [&steps[..], &["--protocol", "ExclusiveQueue"]].concat();
    let explored = prove(Some(&vhost.url()), &steps).await;
    let text = text(&explored);
    assert_eq!(explored.status.code(), Some(0), "{text}");
    assert!(text.contains(": every interleaving"), "{text}");
    let left = vhost.queues().await;
    assert!(left.is_empty(), "left on the broker: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_correct_clients_violate_nothing_with_one_fault() {
    let vhost = Vhost::create().await;
    let explored = with_faults(&vhost, "", "12").await;
    let text = text(&explored);
    assert_eq!(explored.status.code(), Some(0), "{text}");
    let none = "0 of 12 executions with one fault caused a violation, drawn from ";
    assert!(text.contains(none), "{text}");
    assert!(text.contains("; 12 faults took effect"), "{text}");
    let left = vhost.queues().await;
    assert!(left.is_empty(), "left on the broker: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reconnects_silently_is_found_by_one_fault() {
    let vhost = Vhost::create().await;
    // There are fewer executions with a fault, so all of them are run.
    let explored = with_faults(&vhost, "--bug reconnects", "40").await;
    let text = text(&explored);
    assert_eq!(explored.status.code(), Some(1), "{text}");
    // Either of the two equal clients may be the one that loses its slot.
    let is_cut = |process| text.contains(&format!("process {process}: cut while it holds\n"));
    assert!(is_cut(1) || is_cut(2), "{text}");
    assert!(text.contains("S2 CLIENT"), "{text}");
    // Faults are injected only if nothing is violated without them.
    assert!(text.contains(" executions with one fault caused a violation; "), "{text}");
}

/// Explores two clients with one fault in each execution, in this many executions.
async fn with_faults(vhost: &Vhost, bug: &str, sample: &str) -> Output {
    let prover = quoted("lockkeeper-prove");
    let straw = format!("{prover} straw --protocol ExclusiveQueue --overshoot 1 {bug}");
    let steps = ["steps", "--driver", &straw, "--administrator", &straw, "--faults", "one"];
    let drawn = ["--sample", sample, "--seed", "1", "--protocol", "ExclusiveQueue"];
    prove(Some(&vhost.url()), &[&steps[..], &drawn].concat()).await
}
