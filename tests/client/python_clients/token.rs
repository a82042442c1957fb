//! The client of protocol Token, `examples/python/token_client.py`, on a queue as created
//! in the RabbitMQ blog, together with a client as written in the blog.

use std::process::Stdio;

use futures::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions, BasicRejectOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually, look};
use tokio::process::Child;

use super::{ENDED, TOKEN};

const QUEUE: &str = "ci.deploy.semaphore";

/// As in the blog: `durable, not exclusive, not auto-delete, no arguments`, and one
/// message for each possible holder.
async fn set_up(channel: &Channel, bodies: &[&str]) {
    let durable = QueueDeclareOptions::durable();
    channel.queue_declare(QUEUE.into(), durable, FieldTable::default()).await.unwrap();
    for body in bodies {
        let (options, plain) = (BasicPublishOptions::default(), BasicProperties::default());
        let body = body.as_bytes();
        channel.basic_publish("".into(), QUEUE.into(), options, body, plain).await.unwrap();
    }
}

/// Returns the number of free tokens.
async fn free(channel: &Channel) -> u32 {
    look(channel, QUEUE).await.message_count()
}

async fn has_free(channel: &Channel, count: u32) {
    eventually("the tokens are free", async || free(channel).await == count).await;
}

/// Consumes as in the blog, with a priority.
async fn blog_consumer(channel: &Channel, priority: i32) -> lapin::Consumer {
    channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), lapin::types::AMQPValue::LongInt(priority));
    let options = BasicConsumeOptions::default();
    channel.basic_consume(QUEUE.into(), "blog".into(), options, arguments).await.unwrap()
}

/// Starts the client with further arguments and this shell line.
fn start(vhost: &Vhost, more: &[&str], line: &str) -> Child {
    let plain = TOKEN.command(vhost, "20", line);
    let mut arguments: Vec<_> = plain.as_std().get_args().map(ToOwned::to_owned).collect();
    arguments.splice(1..1, more.iter().map(Into::into));
    let mut command = tokio::process::Command::new(plain.as_std().get_program());
    command.args(arguments).env("AMQP_URL", vhost.url());
    command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
}

async fn printed(child: Child) -> String {
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_client_exits_as_its_command_does_and_leaves_every_token() {
    let vhost = Vhost::create().await;
    let exit_code = async |timeout, line| TOKEN.exit_code(&vhost, timeout, line).await;
    assert_eq!(exit_code("0", "true").await, Some(81), "no queue, and none is made");
    let (_connection, channel) = vhost.channel().await;
    set_up(&channel, &["1700000000000001", "resource"]).await;
    for (line, code) in [("exit 7", 7), ("kill -KILL $$", 137), ("true", 0)] {
        assert_eq!(exit_code("0", line).await, Some(code));
        assert_eq!(free(&channel).await, 2, "{line}: given back before it ended");
    }
    // A rejected token returns to its place.
    let line = "echo $LOCK_NAME $LOCK_TOKEN_ID";
    assert_eq!(printed(start(&vhost, &[], line)).await, "ci.deploy 1700000000000001\n");
    let first = start(&vhost, &[], "echo held; sleep 60");
    has_free(&channel, 1).await;
    assert_eq!(printed(start(&vhost, &[], line)).await, "ci.deploy\n", "any text is a token");
    let blog = channel.basic_get(QUEUE.into(), BasicGetOptions::default()).await.unwrap();
    assert_eq!(exit_code("0", "true").await, Some(75), "full");
    assert_eq!(exit_code("0.3", "true").await, Some(75), "full");
    blog.unwrap().delivery.reject(BasicRejectOptions { requeue: true }).await.unwrap();
    // The signal is forwarded to the command.
    let pid = first.id().unwrap().to_string();
    std::process::Command::new("kill").arg(&pid).status().unwrap();
    assert_eq!(first.wait_with_output().await.unwrap().status.code(), Some(143));
    has_free(&channel, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_client_and_the_blog_s_take_turns_by_priority() {
    let vhost = Vhost::create().await;
    let (_connection, channel) = vhost.channel().await;
    set_up(&channel, &["1700000000000001"]).await;
    let (_connection, blog) = vhost.channel().await;
    let mut consumer = blog_consumer(&blog, 5).await;
    let delivery = consumer.next().await.unwrap().unwrap();
    let low = start(&vhost, &["--priority", "1"], "echo low; date +%s%N");
    let high = start(&vhost, &["--priority", "9"], "echo high; date +%s%N; sleep 0.3");
    let waiting = async || {
        let queue = vhost.queue(QUEUE).await.unwrap();
        queue["consumer_details"].as_array().map_or(0, Vec::len)
    };
    eventually("all three consume", async || waiting().await == 3).await;
    assert_eq!(free(&channel).await, 0);
    let begun = std::time::Instant::now();
    delivery.reject(BasicRejectOptions { requeue: true }).await.unwrap();
    // Ours with 9, then the blog's with 5, then ours with 1.
    assert!(printed(high).await.starts_with("high\n"));
    let delivery = consumer.next().await.unwrap().unwrap();
    assert!(begun.elapsed() > std::time::Duration::from_millis(300), "not before the higher one");
    blog.basic_cancel("blog".into(), lapin::options::BasicCancelOptions::default()).await.unwrap();
    delivery.reject(BasicRejectOptions { requeue: true }).await.unwrap();
    assert!(printed(low).await.starts_with("low\n"));
    has_free(&channel, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_client_ends_its_command_when_its_queue_goes() {
    let vhost = Vhost::create().await;
    let (_connection, channel) = vhost.channel().await;
    set_up(&channel, &["1700000000000001"]).await;
    let losing = TOKEN.begin(&vhost, ENDED).await;
    vhost.delete(QUEUE).await;
    let lost = losing.wait_with_output().await.unwrap();
    assert_eq!((lost.status.code(), lost.stdout), (Some(80), b"ended\n".to_vec()));
}
