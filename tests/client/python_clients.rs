//! Interoperability with the Python clients in `examples/python/`: each shares a lock
//! with ours, and behaves as its documentation states.

mod failing;
mod minimal;
mod sharing;
mod token;
mod waiting;

use std::process::Stdio;
use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions};
use lapin::types::FieldTable;
use lockkeeper_plan::naming::{LockName, Profile, Protocol, QueueType};
use lockkeeper_plan::semaphore::{DesiredSlots, Holder, sweep_to};
use lockkeeper_semaphore::{Client, Lock, ResizeTo};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::client::{any, broker, held_of, name, quick};

/// The Python version of Debian's python3-pika.
const PYTHON: &str = "/usr/bin/python3";

/// A Python client, and its way of holding.
#[derive(Clone, Copy)]
struct Script {
    file: &'static str,
    options: &'static [&'static str],
    /// Suffix of its connections' names.
    connection: &'static str,
    protocol: Protocol,
}

const GUIDELINE: Script = Script {
    file: "guideline_client.py",
    options: &[],
    connection: "guideline client of ci.deploy",
    protocol: Protocol::ExclusiveQueue(Profile::Guideline),
};

const EXCLUSIVE_CONSUMER: Script = Script {
    file: "exclusive_consumer_client.py",
    options: &[],
    connection: "consumer client of ci.deploy",
    protocol: Protocol::ExclusiveConsumer,
};

const TOKEN: Script = Script {
    file: "token_client.py",
    options: &[],
    connection: "token client of ci.deploy",
    protocol: Protocol::Token(QueueType::Classic),
};

const MUTEX: Script = Script {
    file: "mutex_client.py",
    options: &[],
    connection: "mutex client of ci.deploy",
    protocol: Protocol::TrueMutex,
};

const MINIMAL: Script = Script {
    file: "minimal_client.py",
    options: &[],
    connection: "minimal client of ci.deploy",
    protocol: Protocol::ExclusiveQueue(Profile::Guideline),
};

impl Script {
    fn name(self) -> LockName {
        name().with_protocol(self.protocol)
    }

    /// Returns the client's command, which runs a shell line under the lock.
    fn command(self, vhost: &Vhost, timeout: &str, line: &str) -> Command {
        let has_pika = std::process::Command::new(PYTHON).args(["-c", "import pika"]).output();
        let has_pika = has_pika.is_ok_and(|output| output.status.success());
        assert!(has_pika, "{PYTHON} has no pika: dev/install installs Debian's python3-pika");
        let client = format!("{}/examples/python/{}", env!("CARGO_MANIFEST_DIR"), self.file);
        let mut command = Command::new(PYTHON);
        command.args([client.as_str(), "--timeout", timeout]).args(self.options);
        command.args(["ci.deploy", "--", "sh", "-c", line]);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("AMQP_URL", vhost.url()).stdout(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Returns the client's command over this proxy.
    fn through(self, proxy: &Proxy, vhost: &Vhost, line: &str) -> Command {
        let mut command = self.command(vhost, "10", line);
        command.env("AMQP_URL", proxy.url(&vhost.url()));
        command
    }

    async fn exit_code(self, vhost: &Vhost, timeout: &str, line: &str) -> Option<i32> {
        self.command(vhost, timeout, line).status().await.unwrap().code()
    }

    /// Runs it and waits for its output.
    fn output(self, vhost: &Vhost, line: &str) -> tokio::task::JoinHandle<std::process::Output> {
        let mut command = self.command(vhost, "10", line);
        tokio::spawn(async move { command.output().await.unwrap() })
    }

    /// Runs a shell line under the lock, and waits until it prints a line of five letters.
    async fn begin(self, vhost: &Vhost, line: &str) -> Child {
        let mut child = self.command(vhost, "10", line).spawn().unwrap();
        printed_a_word(&mut child).await;
        child
    }

    /// Sets the number of slots. A mutex has one without that.
    async fn resize(self, vhost: &Vhost, slots: u32) {
        if self.protocol == Protocol::TrueMutex {
            return;
        }
        let (to, desired) = (ResizeTo::Exactly(slots), DesiredSlots::new(0));
        let stop = CancellationToken::new();
        broker(vhost).resize(&self.name(), to, desired, &stop).await.unwrap();
    }

    /// The lock, with a client of ours.
    fn lock(self, vhost: &Vhost) -> Lock {
        Client::new(vhost.settings(), quick()).semaphore(self.name())
    }

    async fn held(self, vhost: &Vhost) -> Vec<u32> {
        held_of(broker(vhost).observe(&self.name(), 16, 16).await.unwrap())
    }

    async fn is_held(self, vhost: &Vhost) {
        eventually("it holds slot 1", async || self.held(vhost).await == [1]).await;
    }

    /// Returns the holders, with the facts that they provide.
    async fn holders(self, vhost: &Vhost) -> Vec<Holder> {
        let broker = broker(vhost);
        let seen = broker.observe(&self.name(), 16, 16).await.unwrap();
        broker.holders(&self.name(), &seen, 16, 16).await.list
    }
}

async fn announces_itself_and_exits_as_its_command_does(script: Script) {
    let vhost = Vhost::create().await;
    let exit_code = async |timeout, line| script.exit_code(&vhost, timeout, line).await;
    assert_eq!(exit_code("0", "true").await, Some(81), "no such lock");
    script.resize(&vhost, 0).await;
    assert_eq!(exit_code("0", "true").await, Some(75), "no slots");
    script.resize(&vhost, 1).await;
    assert_eq!(exit_code("0", "exit 7").await, Some(7));
    assert_eq!(exit_code("0", "kill -KILL $$").await, Some(137));
    let permit = script.lock(&vhost).try_acquire(&any()).await.unwrap();
    assert_eq!(exit_code("0.3", "true").await, Some(75), "full");
    permit.release().await.unwrap();

    let mut child = script.begin(&vhost, "echo begun; exec sleep 60").await;
    script.is_held(&vhost).await;
    eventually("it is shown with its identity and reason", async || {
        let [holder] = &script.holders(&vhost).await[..] else { return false };
        holder.identity.as_ref().is_some_and(|identity| identity.starts_with("pid "))
            && holder.reason.as_deref() == Some("sh -c echo begun; exec sleep 60")
    })
    .await;
    // The signal is forwarded to the command.
    let pid = child.id().unwrap().to_string();
    std::process::Command::new("kill").arg(&pid).status().unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(143));
    assert_eq!(script.held(&vhost).await, Vec::<u32>::new());
}

/// Waits until the client's command prints a line of five letters.
async fn printed_a_word(client: &mut Child) {
    let mut line = [0; 6];
    client.stdout.as_mut().unwrap().read_exact(&mut line).await.unwrap();
}

/// Prints a line at once, and another one when it receives SIGTERM.
const ENDED: &str = "trap 'echo ended; exit' TERM; echo begun; sleep 60 & wait";

async fn ends_its_command_when_it_loses_but_not_when_it_drains(script: Script) {
    let vhost = Vhost::create().await;
    script.resize(&vhost, 1).await;
    let line = "trap 'echo ended; exit' TERM; sleep 6.5 & wait; echo done";
    let draining = script.output(&vhost, line);
    script.is_held(&vhost).await;
    script.resize(&vhost, 0).await;
    let drained = draining.await.unwrap();
    assert_eq!((drained.status.code(), drained.stdout), (Some(0), b"done\n".to_vec()));

    script.resize(&vhost, 1).await;
    let losing = tokio::spawn(script.begin(&vhost, ENDED).await.wait_with_output());
    vhost.close_until(script.connection, "test", async || losing.is_finished()).await;
    let lost = losing.await.unwrap().unwrap();
    assert_eq!((lost.status.code(), lost.stdout), (Some(80), b"ended\n".to_vec()));
}

/// Such as the holder queue of another client. One that is just being deleted answers the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_rejects_messages_is_found_to_exist() {
    for (script, held) in
        [(GUIDELINE, "ci.deploy-1-B"), (MINIMAL, "ci.deploy-1-B"), (MUTEX, "ci.deploy")]
    {
        let vhost = Vhost::create().await;
        script.resize(&vhost, 1).await;
        let arguments = json!({"x-max-length": 0, "x-overflow": "reject-publish"});
        vhost.declare(held, json!({"durable": true, "arguments": arguments})).await;
        assert_eq!(script.exit_code(&vhost, "0", "true").await, Some(75), "{}", script.file);
        vhost.delete(held).await;
        assert_eq!(script.exit_code(&vhost, "0", "true").await, Some(0), "{}", script.file);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_deleted_while_it_is_probed_does_not_end_a_client() {
    for script in [GUIDELINE, MINIMAL] {
        let (vhost, proxy) = (Vhost::create().await, Proxy::start().await);
        script.resize(&vhost, 1).await;
        let deleted = proxy.delete_meanwhile();
        let code = script.through(&proxy, &vhost, "true").status().await.unwrap().code();
        assert_eq!(code, Some(0), "{}", script.file);
        deleted.wait().await;
    }
}

async fn passes_on_fencing_tokens_and_rests_after_an_unclean_end(script: Script) {
    const DELAY: Duration = Duration::from_millis(1500);
    let vhost = Vhost::create().await;
    let desired = DesiredSlots { records: Some(DELAY), ..DesiredSlots::new(1) };
    let (broker, name, stop) = (broker(&vhost), script.name(), CancellationToken::new());
    broker.converge(&name, desired, sweep_to(desired, 0), false, &stop).await.unwrap();
    let ours = async || {
        let begun = Instant::now();
        let permit = script.lock(&vhost).acquire(&any()).await.unwrap();
        let fence = permit.fence().unwrap();
        permit.release().await.unwrap();
        (fence, begun.elapsed())
    };
    let theirs = async || {
        let begun = Instant::now();
        let output = script.output(&vhost, "echo $LOCK_TOKEN").await.unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let fence: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        (fence, begun.elapsed())
    };
    let (first, second, third) = (ours().await.0, theirs().await.0, ours().await.0);
    assert_eq!((second, third), (first + 1, first + 2));

    let kill = async || {
        let mut command = script.command(&vhost, "10", "echo started; read end");
        let mut killed = command.stdin(Stdio::piped()).spawn().unwrap();
        // Only then has it replaced the record.
        let mut started = [0; 8];
        killed.stdout.as_mut().unwrap().read_exact(&mut started).await.unwrap();
        killed.kill().await.unwrap();
    };
    kill().await;
    let (fence, took) = ours().await;
    assert!(fence == first + 4 && took >= DELAY, "{fence} after {first}, in {took:?}");
    kill().await;
    let (fence, took) = theirs().await;
    assert!(fence == first + 6 && took >= DELAY, "{fence} after {first}, in {took:?}");
    assert_eq!(ours().await.0, first + 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guideline_s_client_passes_on_fencing_tokens_and_rests_after_an_unclean_end() {
    passes_on_fencing_tokens_and_rests_after_an_unclean_end(GUIDELINE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exclusive_consumer_client_passes_on_fencing_tokens_and_rests_after_an_unclean_end() {
    passes_on_fencing_tokens_and_rests_after_an_unclean_end(EXCLUSIVE_CONSUMER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guideline_s_client_announces_itself_and_exits_as_its_command_does() {
    announces_itself_and_exits_as_its_command_does(GUIDELINE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exclusive_consumer_client_announces_itself_and_exits_as_its_command_does() {
    announces_itself_and_exits_as_its_command_does(EXCLUSIVE_CONSUMER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_client_announces_itself_and_exits_as_its_command_does() {
    announces_itself_and_exits_as_its_command_does(TOKEN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guideline_s_client_ends_its_command_when_it_loses_but_not_when_it_drains() {
    ends_its_command_when_it_loses_but_not_when_it_drains(GUIDELINE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exclusive_consumer_client_ends_its_command_when_it_loses_but_not_when_it_drains() {
    ends_its_command_when_it_loses_but_not_when_it_drains(EXCLUSIVE_CONSUMER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_client_ends_its_command_when_it_loses_but_not_when_it_drains() {
    ends_its_command_when_it_loses_but_not_when_it_drains(TOKEN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exclusive_consumer_client_is_notified_of_deletion_and_revocation_immediately() {
    let (script, vhost) = (EXCLUSIVE_CONSUMER, Vhost::create().await);
    let (_connection, channel) = vhost.channel().await;
    for revoked in [false, true] {
        // The second one shows the protocol when the first has lost its queue.
        script.resize(&vhost, 2).await;
        let losing = script.begin(&vhost, ENDED).await;
        let (_other, others) = vhost.channel().await;
        let (queue, plain) = ("ci.deploy-1-C".into(), BasicConsumeOptions::default());
        let consumed = others.basic_consume(queue, "other".into(), plain, FieldTable::default());
        let refused = consumed.await.expect_err("it is the only consumer").to_string();
        assert!(refused.contains("in exclusive use"), "{refused}");
        let begun = Instant::now();
        if revoked {
            let (none, queue) = ("".into(), "ci.deploy-1-C".into());
            let (options, plain) = (BasicPublishOptions::default(), BasicProperties::default());
            let sent = channel.basic_publish(none, queue, options, b"revoke: test", plain);
            sent.await.unwrap();
        } else {
            vhost.delete("ci.deploy-1-C").await;
        }
        let lost = losing.wait_with_output().await.unwrap();
        assert_eq!((lost.status.code(), lost.stdout), (Some(80), b"ended\n".to_vec()));
        // Earlier than by a proof, which is sent every 5 s.
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exclusive_consumer_client_refuses_a_queue_of_which_two_could_be_the_only_consumer() {
    let (script, vhost) = (EXCLUSIVE_CONSUMER, Vhost::create().await);
    script.resize(&vhost, 1).await;
    vhost.delete("ci.deploy-1-C").await;
    let arguments = serde_json::json!({"x-queue-type": "quorum", "x-max-length": 0});
    let quorum = serde_json::json!({"durable": true, "arguments": arguments});
    vhost.declare("ci.deploy-1-C", quorum).await;
    assert_eq!(script.exit_code(&vhost, "0", "true").await, Some(69));
}

#[tokio::test]
async fn a_missing_or_wrong_broker_is_said_in_words() {
    let vhost = Vhost::create().await;
    for script in [GUIDELINE, EXCLUSIVE_CONSUMER, TOKEN, MUTEX, MINIMAL] {
        for (url, code, says) in [
            (None, 2, "set AMQP_URL"),
            (Some("amqp://no-such-host.invalid"), 69, "gaierror"),
            (Some("amqp://127.0.0.1:1"), 69, "AMQPConnectionError"),
        ] {
            let mut command = script.command(&vhost, "1", "true");
            match url {
                Some(url) => command.env("AMQP_URL", url),
                None => command.env_remove("AMQP_URL"),
            };
            let output = command.stderr(Stdio::piped()).output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{}: {said}", script.file);
            assert!(said.contains(says) && !said.contains("Traceback"), "{}: {said}", script.file);
        }
    }
}
