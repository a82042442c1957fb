//! Operations whose future is dropped before the broker has answered, on a connection that
//! holds a slot.

use std::time::Duration;

use lockkeeper::plan::naming::Protocol;
use lockkeeper::semaphore::Verdict;

use crate::client::support::protocols::{Place, with_protocols};
use crate::client::support::proxy::{Proxy, Sender};
use crate::client::support::rabbitmq::eventually;
use crate::client::wire::{LONG, through};
use crate::client::{any, resize};

with_protocols! {
    slots {
        a_verification_given_up_before_it_is_refused_does_not_lose_the_slot,
    }
}

/// The broker refuses to show a missing slot and closes the channel, just as the client
/// closes it because the answer is no longer awaited.
async fn a_verification_given_up_before_it_is_refused_does_not_lose_the_slot(protocol: Protocol) {
    let place = Place::create(protocol).await;
    resize(&place, 1).await;
    let proxy = Proxy::start().await;
    let permit = through(&proxy, &place, LONG).acquire(&any()).await.unwrap();
    resize(&place, 0).await;
    assert_eq!(permit.verify().await, Ok(Verdict::Draining));
    for _ in 0..5 {
        proxy.reset();
        proxy.delay(Sender::Broker, Duration::from_secs(1));
        let refused = async || proxy.count("channel.close") > 0;
        tokio::select! {
            verdict = permit.verify() => assert_eq!(verdict, Ok(Verdict::Draining)),
            () = eventually("the broker refuses", refused) => {}
        }
        // The next answer follows the delayed refusal immediately.
        proxy.delay(Sender::Broker, Duration::ZERO);
        assert_eq!(permit.verify().await, Ok(Verdict::Draining));
    }
    permit.release().await.unwrap();
}
