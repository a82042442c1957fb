//! Policies that limit the token queue: no change succeeds with fewer tokens than requested.

use futures::future::join_all;
use lockkeeper_semaphore::{
    Broker, BrokerError, BrokerOptions, PolicyEffect, ResizeError, ResizeTo, Risk,
};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::{Value, json};

use super::{QUEUE, classic, make, resize, settles_at, total};
use crate::broker::broker;

async fn set_policy(vhost: &Vhost, definition: &Value) {
    let policy = json!({"pattern": "semaphore$", "definition": definition, "apply-to": "queues"});
    vhost.management.put(&format!("policies/{}/limit", vhost.name), policy).await;
}

/// Once the API shows the limit, which takes it some seconds for a new queue, no token is
/// published. Returns the error.
async fn none_is_published(vhost: &Vhost) -> BrokerError {
    eventually("the API shows the limit", async || {
        let shown =
            vhost.queue(QUEUE).await.map(|queue| queue["effective_policy_definition"].clone());
        shown.is_some_and(|shown| shown.as_object().is_some_and(|shown| !shown.is_empty()))
    })
    .await;
    let proxy = Proxy::start().await;
    let through = Broker::new(proxy.settings(vhost.settings()), BrokerOptions::default());
    let error = make(&through, &classic(), 10).await.unwrap_err();
    let sent = proxy.methods();
    assert!(!sent.iter().any(|sent| sent.name == "basic.publish" && sent.queue == QUEUE));
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn no_change_succeeds_with_fewer_tokens_than_requested() {
    let limits = [
        (json!({"max-length": 5}), 5),
        (json!({"max-length": 1, "overflow": "reject-publish"}), 1),
        (json!({"max-length-bytes": 1}), 0),
        // Nothing shows before the tokens are published that they will be dropped.
        (json!({"message-ttl": 0}), 0),
    ];
    join_all(limits.map(async |(definition, kept)| {
        let vhost = Vhost::create().await;
        let broker = broker(&vhost);
        set_policy(&vhost, &definition).await;
        let error = resize(&broker, &classic(), ResizeTo::Create(10)).await.unwrap_err();
        let queue = QUEUE.to_owned();
        let limited = BrokerError::TokensLimited { queue, kept, desired: 10 };
        assert_eq!(error, ResizeError::Broker(limited.clone()), "{definition}");
        assert_eq!(make(&broker, &classic(), 10).await.unwrap_err(), limited, "{definition}");
        // The broker may report the limit of a new queue only after tokens were published.
        assert!(total(&vhost).await.unwrap_or(0) <= kept, "{definition}");
        let effect = match kept {
            _ if definition.get("message-ttl").is_some() => PolicyEffect::MessagesExpire,
            to => PolicyEffect::LimitsTokens { to },
        };
        if matches!(effect, PolicyEffect::LimitsTokens { .. }) {
            assert_eq!(none_is_published(&vhost).await, limited, "{definition}");
        }
        let risk = Risk::Policy { effect, queue: QUEUE.to_owned() };
        // The lists of policies are cached.
        let found = async || self::broker(&vhost).risks(&classic()).await.unwrap().found;
        eventually("the risk is found", async || found().await == [risk.clone()]).await;

        vhost.management.delete(&format!("policies/{}/limit", vhost.name)).await;
        eventually("the policy is gone", async || make(&broker, &classic(), 10).await.is_ok())
            .await;
        settles_at(&vhost, 10).await;
    }))
    .await;
}
