//! Messages while waiting for a lock without a terminal, and waiting during a restart of
//! the broker or behind suspended waiters.

use std::time::{Duration, Instant};

use lockkeeper_plan::naming::{Protocol, QueueType};
use lockkeeper_semaphore::{Broker, BrokerOptions};
use lockkeeper_testkit::own_server::OwnServer;
use lockkeeper_testkit::protocols::{At, TestLock, with_protocols};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};

use crate::exec::commands::{Running, Scratch};
use crate::exec::{LOCK, create, lockkeeper, program, spoken};

with_protocols! {
    slots {
        a_suspended_waiter_delays_the_next_one_by_a_few_seconds,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_is_reported_once_and_with_quiet_never() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let holds = "echo $LOCK_HOLDER_ID >>$0; exec sleep 600";
    let arguments = ["exec", LOCK, "--identity", "bob", "--", "sh", "-c", holds, &file];
    let mut holding = Running::start(&scratch, "holding", lockkeeper(&vhost, &arguments));
    scratch.next_holder(&[]).await;
    let waiting = lockkeeper(&vhost, &["exec", LOCK, "--", "true"]);
    let mut waiting = Running::start(&scratch, "waiting", waiting);
    let quiet = lockkeeper(&vhost, &["exec", LOCK, "--quiet", "--", "true"]);
    let mut quiet = Running::start(&scratch, "quiet", quiet);
    waiting.until_it_says("waiting for a slot of ci.deploy: 1 of 1 held, 1 by bob since 2").await;
    holding.signal("TERM");
    assert_eq!(holding.code().await, Some(143));
    assert_eq!((waiting.code().await, quiet.code().await), (Some(0), Some(0)));
    let said = waiting.said();
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains("got slot 1 of ci.deploy after "), "{said}");
    assert_eq!((quiet.said(), holding.said()), (String::new(), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_that_waits_survives_a_restart_of_the_broker() {
    let broker = OwnServer::rabbitmq().await;
    let address = broker.variable("AMQP_URL");
    let scratch = Scratch::new();
    let start = |name: &str, protocol: Protocol, words: &[&str]| {
        let mut command = program(&[], &spoken(protocol, words));
        command.env("AMQP_URL", &address).env_remove("RABBITMQ_MANAGEMENT_URL");
        Running::start(&scratch, name, command)
    };
    let protocols =
        [Protocol::default(), Protocol::ExclusiveConsumer, Protocol::Token(QueueType::Classic)];
    let mut execs = Vec::new();
    for (n, protocol) in protocols.into_iter().enumerate() {
        let (lock, register) = (format!("{LOCK}-{n}"), scratch.file("register"));
        let create = ["semaphore", "create", &lock, "--slots", "1"];
        let mut create = start("create", protocol, &create);
        assert_eq!(create.code().await, Some(0), "{}", create.said());
        let known = scratch.holders();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let holds =
            ["exec", &lock, "--", "sh", "-c", "echo $LOCK_HOLDER_ID >>$0; sleep 600", &register];
        let holder = start(&format!("holder-{n}"), protocol, &holds);
        scratch.next_holder(&known).await;
        let waits = ["exec", &lock, "--timeout", "10m", "--", "sh", "-c", "exit 7"];
        let waiter = start(&format!("waiter-{n}"), protocol, &waits);
        waiter.until_it_says("waiting for a ").await;
        execs.push((holder, waiter));
    }
    broker.stop().await;
    for (holder, _) in &mut execs {
        assert_eq!(holder.code().await, Some(80), "{}", holder.said());
    }
    broker.start().await;
    for (_, mut waiter) in execs {
        let end = tokio::time::timeout(Duration::from_mins(1), waiter.process.wait()).await;
        assert_eq!(end.unwrap().unwrap().code(), Some(7), "{}", waiter.said());
    }
}

/// The broker gives the wake-up to the suspended one, whose priority is higher.
async fn a_suspended_waiter_delays_the_next_one_by_a_few_seconds(protocol: Protocol) {
    let place = TestLock::create(protocol).await;
    create(&place, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let holds = ["exec", LOCK, "--", "sh", "-c", "echo $LOCK_HOLDER_ID >>$0; sleep 600", &file];
    let mut holder = Running::start(&scratch, "holder", lockkeeper(&place, &holds));
    scratch.next_holder(&[]).await;
    let administrator = Broker::new(place.settings(), BrokerOptions::default());
    let start = async |name: &str, priority: &str, waiting: u32| {
        let waits = ["exec", LOCK, "--priority", priority, "--", "true"];
        let running = Running::start(&scratch, name, lockkeeper(&place, &waits));
        eventually("it waits", async || {
            administrator.waiting(&place.lock_name()).await.unwrap() == Some(waiting)
        })
        .await;
        running
    };
    // The first to join finds no others, and therefore does not look soon.
    let mut next = start("next", "0", 1).await;
    let suspended = start("suspended", "255", 2).await;
    suspended.signal("STOP");
    holder.signal("TERM");
    assert_eq!(holder.code().await, Some(143));
    let released = Instant::now();
    assert_eq!(next.code().await, Some(0), "{}", next.said());
    let after = released.elapsed();
    assert!(after < Duration::from_secs(8), "{after:?}: {}", next.said());
    suspended.signal("KILL");
}
