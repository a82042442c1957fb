//! `lockkeeper doctor --lock`: the mistakes that keep a client from a lock.

use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::rabbitmq::Vhost;

use crate::exec::{LOCK, create, run, succeed};

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_of_a_lock_finds_each_likely_mistake_and_says_what_to_do() {
    let vhost = Vhost::create().await;
    create(&vhost, 2).await;
    succeed(&vhost, &["semaphore", "create", "ci.closed", "--slots", "0"]).await;
    succeed(&vhost, &["semaphore", "create", "ci.token", "--slots", "1", "--protocol", "Token"])
        .await;
    let at_port_of = |name: &str| {
        let port = url::Url::parse(&variable(name)).unwrap().port().unwrap();
        format!("amqp://guest:guest@127.0.0.1:{port}")
    };
    let [redis, management] = ["REDIS_URL", "RABBITMQ_MANAGEMENT_URL"].map(at_port_of);
    let [may_all, may_not_read, may_nothing, wrong] = [
        user(&vhost, ["^ci\\.", "^amq\\.default$", "^ci\\."]).await,
        user(&vhost, ["^ci\\.", "^amq\\.default$", "^$"]).await,
        user(&vhost, ["^$", "^$", "^$"]).await,
        at_port_of("AMQP_URL").replace("guest:guest", "guest:hush-wrong"),
    ];
    let no_vhost = format!("{}-not", vhost.url());
    // Arguments, whether that is wrong, and a part of the message.
    let table: &[(&[&str], bool, &str)] = &[
        (&[LOCK], false, "has the permissions to hold it"),
        (&[LOCK], false, "exists: 0 of 2 held"),
        (&[LOCK, "--url", &may_all], false, "has the permissions to hold it"),
        (&["ci.token", "--protocol", "Token"], false, "has the permissions to hold it"),
        (&["ci.closed"], false, "has no slots, so no client can acquire it"),
        (&[LOCK, "--management-url", "http://127.0.0.1:1"], false, "correct the URL or the user"),
        (&["ci.unknown"], true, "there is no semaphore ci.unknown"),
        (&["ci/deploy"], true, "for a resource, use sem/deploy -n demo"),
        (&[LOCK, "--protocol", "Token"], true, "is one of protocol ExclusiveQueue"),
        (&["ci.token"], true, "is one of protocol Token"),
        (&[LOCK, "--url", ""], true, "name the broker: set AMQP_URL"),
        (&[LOCK, "--url", "127.0.0.1:5672"], true, "is not valid: expected amqp://"),
        (&[LOCK, "--url", "http://127.0.0.1"], true, "is not valid: expected amqp://"),
        (&[LOCK, "--url", "amqp://127.0.0.1:1"], true, "Connection refused"),
        (&[LOCK, "--url", "amqp://no-such-host.invalid"], true, "no-such-host.invalid:5672"),
        (&[LOCK, "--url", &redis], true, "it accepts connections, but"),
        (&[LOCK, "--url", &management], true, "it accepts connections, but"),
        (&[LOCK, "--url", &wrong], true, "refuses the user \"guest\""),
        (&[LOCK, "--url", &no_vhost], true, "has no virtual host"),
        (&[LOCK, "--url", &may_nothing], true, "docs/permissions.md has the permissions"),
        (&[LOCK, "--url", &may_not_read], true, "docs/permissions.md has the permissions"),
    ];
    for (arguments, is_wrong, says) in table {
        let line = [&["doctor", "--lock"][..], arguments].concat();
        let outcome = run(&vhost, &line).await;
        assert_eq!(outcome.code, Some(i32::from(*is_wrong)), "{line:?}: {outcome:?}");
        assert!(outcome.stdout.contains(says), "{line:?}: {outcome:?}");
        assert!(!outcome.stdout.contains("hush"), "{line:?}: {outcome:?}");
        assert_eq!(outcome.stdout.contains("WRONG"), *is_wrong, "{line:?}: {outcome:?}");
    }
    // It waits until the lock is there.
    let waiting = run(&vhost, &["doctor", "--lock", "ci.later", "--wait", "60s"]);
    let creating = succeed(&vhost, &["semaphore", "create", "ci.later", "--slots", "1"]);
    let (waited, _) = tokio::join!(waiting, creating);
    assert_eq!(waited.code, Some(0), "{waited:?}");
    let without = run(&vhost, &["doctor", "--protocol", "Token"]).await;
    assert_eq!(without.code, Some(64), "{without:?}");
    let queues = vhost.queues().await;
    assert!(!queues.iter().any(|queue| queue.contains("-probe-")), "{queues:?}");
}

/// Returns the URL of a user with these permissions.
async fn user(vhost: &Vhost, permissions: [&str; 3]) -> String {
    let (name, password) = vhost.user(Some(permissions)).await;
    let mut url = url::Url::parse(&vhost.url()).unwrap();
    url.set_username(&name).unwrap();
    url.set_password(Some(&password)).unwrap();
    url.into()
}
