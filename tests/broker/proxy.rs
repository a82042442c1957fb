//! The tests' proxy: it records exactly the methods that were sent, and cuts, holds or
//! delays exactly the requested ones. Tests that use it depend on that.

use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use lockkeeper_testkit::environment::variable;
use lockkeeper_testkit::proxy::{Method, Proxy, Sender, When, named, nth};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually, look};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn connect(proxy: &Proxy, vhost: &Vhost) -> Connection {
    let mut uri: AMQPUri = variable("AMQP_URL").parse().unwrap();
    uri.vhost.clone_from(&vhost.name);
    (uri.authority.host, uri.authority.port) = ("127.0.0.1".to_owned(), proxy.port());
    Connection::connect_uri(uri, ConnectionProperties::default()).await.unwrap()
}

async fn declare(channel: &Channel, name: &str, passive: bool) -> Result<(), lapin::Error> {
    let options = QueueDeclareOptions { passive, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.into(), options, FieldTable::default()).await.map(drop)
}

async fn delete(channel: &Channel, name: &str) -> Result<(), lapin::Error> {
    channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.map(drop)
}

fn names(methods: &[Method]) -> Vec<&str> {
    methods.iter().map(|method| method.name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_is_shown_with_its_connection_its_channel_and_its_sender() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let one = connect(&proxy, &vhost).await;
    let two = connect(&proxy, &vhost).await;
    assert_eq!((proxy.connections_opened(), proxy.connections()), (2, 2));
    assert_eq!(proxy.count("connection.open"), 2);
    proxy.reset();
    assert_eq!((proxy.connections_opened(), proxy.connections()), (0, 2));

    let channel = two.create_channel().await.unwrap();
    declare(&channel, "jobs", false).await.unwrap();
    declare(&channel, "missing", true).await.unwrap_err();
    let other = one.create_channel().await.unwrap();
    delete(&other, "jobs").await.unwrap();
    let seen = proxy.seen();
    let sent = ["channel.open", "queue.declare", "queue.declare(passive)", "channel.close-ok"];
    let of = |connection, sender| -> Vec<Method> {
        let theirs = |m: &&Method| m.connection == connection && m.sender == sender;
        seen.iter().filter(theirs).cloned().collect()
    };
    assert_eq!(names(&of(2, Sender::Client)), sent);
    let answered = ["channel.open-ok", "queue.declare-ok", "channel.close"];
    assert_eq!(names(&of(2, Sender::Broker)), answered);
    assert_eq!(of(2, Sender::Client)[2].queue, "missing");
    assert_eq!(of(2, Sender::Client)[2].channel, 1);
    assert_eq!(names(&of(1, Sender::Client)), ["channel.open", "queue.delete"]);
    one.close(200, "OK".into()).await.unwrap();
    eventually("the connection is gone", async || proxy.connections() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_methods_sent_together_pass_in_order_and_are_all_counted() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let channel = connect(&proxy, &vhost).await.create_channel().await.unwrap();
    declare(&channel, "jobs", false).await.unwrap();
    proxy.reset();
    // Frames of every length, so that reads end inside them.
    for size in 0..3_000 {
        let body = vec![b'x'; size * 7 % 5_000];
        let properties = BasicProperties::default();
        let options = BasicPublishOptions::default();
        let publishing =
            channel.basic_publish("".into(), "jobs".into(), options, &body, properties);
        publishing.await.unwrap();
    }
    let options = QueueDeclareOptions::default().passive();
    let all =
        (0..500).map(|_| channel.queue_declare("jobs".into(), options, FieldTable::default()));
    assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
    assert_eq!(proxy.count("basic.publish"), 3_000);
    assert_eq!(proxy.count("queue.declare(passive)"), 500);
    assert_eq!(proxy.count("queue.declare-ok"), 500);
    // The broker answers a declare before all messages are in the queue.
    eventually("every message is there", async || {
        look(&channel, "jobs").await.message_count() == 3_000
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_comes_byte_by_byte_passes_byte_by_byte() {
    let proxy = Proxy::start().await;
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    for byte in b"AMQP\0\0\x09\x01" {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut first = [0; 11];
    stream.read_exact(&mut first).await.unwrap();
    // A method on channel 0, class 10, method 10: connection.start.
    assert_eq!((first[0], &first[7..11]), (1, &[0, 10, 0, 10][..]));
    eventually("it is read", async || proxy.count("connection.start") == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "not to be trusted")]
async fn after_a_frame_that_cannot_be_read_nothing_is_counted_any_more() {
    let proxy = Proxy::start().await;
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    stream.write_all(b"AMQP\0\0\x09\x01\x09\0\0\0\0\0\0\xce").await.unwrap();
    // The frame passed: the broker ends the connection because of it.
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    proxy.seen();
}

/// Much longer than a declare takes.
const DELAY: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_applies_to_the_direction_it_was_asked_for() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let channel = connect(&proxy, &vhost).await.create_channel().await.unwrap();
    for sender in [Sender::Client, Sender::Broker] {
        proxy.delay(sender, DELAY);
        let start = Instant::now();
        declare(&channel, "jobs", false).await.unwrap();
        let took = start.elapsed();
        assert!((DELAY..DELAY * 2).contains(&took), "{sender:?}: {took:?}");
        proxy.delay(sender, Duration::ZERO);
    }
    let start = Instant::now();
    declare(&channel, "jobs", false).await.unwrap();
    assert!(start.elapsed() < DELAY);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_passes_while_frozen_and_everything_afterwards() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let channel = connect(&proxy, &vhost).await.create_channel().await.unwrap();
    proxy.freeze(true);
    let declaring = declare(&channel, "jobs", false);
    tokio::pin!(declaring);
    let passed = tokio::time::timeout(Duration::from_millis(300), &mut declaring).await;
    assert!(passed.is_err());
    assert_eq!(vhost.queue("jobs").await, None);
    proxy.freeze(false);
    declaring.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_ends_every_connection_for_both_ends() {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let channel = connect(&proxy, &vhost).await.create_channel().await.unwrap();
    let exclusive = QueueDeclareOptions::exclusive();
    channel.queue_declare("mine".into(), exclusive, FieldTable::default()).await.unwrap();
    proxy.cut();
    eventually("the client knows", async || !channel.status().connected()).await;
    eventually("the broker knows", async || vhost.queue("mine").await.is_none()).await;
    assert_eq!(proxy.connections(), 0);
    let again = connect(&proxy, &vhost).await.create_channel().await.unwrap();
    declare(&again, "jobs", false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_at_which_the_connection_is_cut_reaches_the_broker_after_but_not_before() {
    for (when, arrives) in [(When::Before, false), (When::After, true)] {
        // A busy broker may notice the end of the connection before it performs the last
        // method.
        let mut as_it_should = false;
        for _ in 0..20 {
            let (second, third, fourth) = cut_at_the_third(when).await;
            assert!(!fourth && (arrives || !third), "{when:?}");
            as_it_should = second && third == arrives;
            if as_it_should {
                break;
            }
        }
        assert!(as_it_should, "{when:?}");
    }
}

/// Cuts the connection at the third of four declares that are sent together. Returns
/// which of the last three queues exist once the broker has noticed the end.
async fn cut_at_the_third(when: When) -> (bool, bool, bool) {
    let vhost = Vhost::create().await;
    let proxy = Proxy::start().await;
    let channel = connect(&proxy, &vhost).await.create_channel().await.unwrap();
    let exclusive = QueueDeclareOptions::exclusive();
    channel.queue_declare("mine".into(), exclusive, FieldTable::default()).await.unwrap();
    let cut = proxy.cut_at(when, nth(3));
    let all = (1..=4).map(|n| async move { format!("jobs-{n}") });
    let all = all.map(async |name| declare(&channel, &name.await, false).await);
    let answers = futures::future::join_all(all).await;
    cut.wait().await;
    assert!(answers[2..].iter().all(Result::is_err), "{answers:?}");
    eventually("the proxy has ended it", async || proxy.connections() == 0).await;
    eventually("the broker knows", async || vhost.queue("mine").await.is_none()).await;
    let there = async |n| vhost.queue(&format!("jobs-{n}")).await.is_some();
    (there(2).await, there(3).await, there(4).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_at_which_the_connection_is_held_waits_or_its_answer_does() {
    let vhost = Vhost::create().await;
    for (when, arrives) in [(When::Before, false), (When::After, true)] {
        let proxy = Proxy::start().await;
        let channel = connect(&proxy, &vhost).await.create_channel().await.unwrap();
        let other = connect(&proxy, &vhost).await.create_channel().await.unwrap();
        declare(&channel, "jobs", false).await.unwrap();
        let held = proxy.hold_at(when, named("queue.delete"));
        let deleting = tokio::spawn({
            let channel = channel.clone();
            async move { delete(&channel, "jobs").await }
        });
        held.wait().await;
        let gone = async || declare(&other, "jobs", true).await.is_err();
        if arrives {
            eventually("the queue is gone", async || vhost.queue("jobs").await.is_none()).await;
        }
        assert_eq!(gone().await, arrives, "{when:?}; other connections go on");
        assert!(!deleting.is_finished());
        proxy.resume();
        deleting.await.unwrap().unwrap();
        assert!(vhost.queue("jobs").await.is_none());
        declare(&channel, "once more", false).await.unwrap();
    }
}
