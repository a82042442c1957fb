//! An application that connects to another port instead of the broker's is judged by what the
//! broker knew.

use std::process::Stdio;

use lapin::ConnectionProperties;
use lapin::options::QueueDeleteOptions;
use lockkeeper_testkit::built;
use lockkeeper_testkit::rabbitmq::Vhost;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::program;

/// A running `watch`.
struct Watch {
    process: Child,
    said: Lines<BufReader<ChildStdout>>,
    /// The URL of its port.
    through: String,
}

impl Watch {
    async fn start(vhost: &Vhost) -> Self {
        let mut command = Command::new(program());
        command.args(["watch", "--listen", "127.0.0.1:0", "--protocol", "ExclusiveQueue"]);
        command.args(["--lock", "ci.deploy"]).env("AMQP_URL", vhost.url());
        let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
        let first = said.next_line().await.unwrap().expect("it says its port");
        let port = first.split_once("port ").and_then(|(_, rest)| rest.split_once(';'));
        let mut through = url::Url::parse(&vhost.url()).unwrap();
        through.set_port(port.and_then(|(port, _)| port.parse().ok())).unwrap();
        Self { process, said, through: through.into() }
    }

    /// Presses Ctrl-C. Returns the exit code and the verdict.
    async fn end(mut self) -> (Option<i32>, String) {
        let pid = self.process.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
        let code = self.process.wait().await.unwrap().code();
        let mut said = String::new();
        while let Some(line) = self.said.next_line().await.unwrap() {
            said += &(line + "\n");
        }
        (code, said)
    }
}

async fn lockkeeper(url: &str, words: &[&str]) {
    let mut command = Command::new(built::lockkeeper());
    let status = command.args(words).env("AMQP_URL", url).stdout(Stdio::null()).status().await;
    assert!(status.unwrap().success(), "{words:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_is_judged_by_what_the_broker_knew() {
    let vhost = Vhost::create().await;
    lockkeeper(&vhost.url(), &["semaphore", "create", "ci.deploy", "--slots", "2"]).await;
    let watch = Watch::start(&vhost).await;
    lockkeeper(&watch.through, &["exec", "ci.deploy", "--", "true"]).await;
    lockkeeper(&watch.through, &["semaphore", "grow", "ci.deploy", "1"]).await;
    let (code, said) = watch.end().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("1 holds at the broker"), "{said}");

    let watch = Watch::start(&vhost).await;
    let properties = ConnectionProperties::default();
    let connection = lapin::Connection::connect(&watch.through, properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.queue_delete("ci.deploy-3-A".into(), QueueDeleteOptions::default()).await.unwrap();
    let (code, said) = watch.end().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("S9 CLIENT") && said.contains("deleted slot 3"), "{said}");
}
