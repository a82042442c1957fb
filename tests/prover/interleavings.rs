//! Every interleaving of two correct clients and a shrink on a real broker. Clients with bugs are
//! in `controls`.

use super::{prove, quoted, text};
use crate::support::rabbitmq::Vhost;

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
