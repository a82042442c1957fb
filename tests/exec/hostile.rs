//! Servers that send what no server sends, and messages that no client publishes: `exec`,
//! `hold` and `queue get` end with an error or go on, and none is aborted.

use std::process::Stdio;
use std::time::Duration;

use futures::StreamExt;
use lockkeeper_plan::naming::{Protocol, QueueType};
use lockkeeper_testkit::built;
use lockkeeper_testkit::hostile::amqp::{self, behaviours};
use lockkeeper_testkit::hostile::redis::{Answer, When};
use lockkeeper_testkit::hostile::{Peer, send};
use lockkeeper_testkit::protocols::TestLock;
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::exec::commands::{Running, Scratch};
use crate::exec::{LOCK, create, lockkeeper, outcome, program, succeed};

/// Number of processes at the same time.
const AT_ONCE: usize = 6;

/// Exit codes of an error: the server can't be used, no slot was available in time, or the
/// usage is invalid because the broker's limits are.
const ERRORS: [i32; 3] = [64, 69, 75];

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_server_ends_a_client_with_an_error_and_aborts_none() {
    let mut table: Vec<(String, Vec<String>)> = Vec::new();
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    for (step, sent) in behaviours() {
        let url = format!("amqp://user:password@127.0.0.1:{}", amqp::start(step, sent).await);
        let exec = words(&["exec", LOCK, "--url", &url, "--timeout", "3s", "--", "true"]);
        let hold = words(&["hold", LOCK, "--url", &url, "--no-wait"]);
        table.push((format!("{step:?} {sent:?}"), exec));
        table.push((format!("{step:?} {sent:?}"), hold));
    }
    for when in [When::BeforeLogin, When::AfterLogin] {
        for answer in Answer::ALL {
            // The limit is that of elements after the login: see `connection::answers`.
            if when == When::AfterLogin
                && matches!(answer, Answer::EndlessBulk | Answer::EndlessArray)
            {
                continue;
            }
            let url = format!("redis://user:password@127.0.0.1:{}", answer.start(when).await);
            let get = words(&["queue", "get", "q", "--url", &url, "--timeout", "3s"]);
            table.push((format!("{when:?} {answer:?}"), get));
        }
    }
    let runs = table.into_iter().map(async |(what, words)| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ended = outcome(program(&[], &words));
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        (what, ended.unwrap_or_else(|_| panic!("{words:?} hangs")))
    });
    let mut runs = futures::stream::iter(runs).buffer_unordered(AT_ONCE);
    while let Some((what, ended)) = runs.next().await {
        assert!(ended.code.is_some_and(|code| ERRORS.contains(&code)), "{what}: {ended:?}");
        for abort in ["overflow", "panicked"] {
            assert!(!ended.stderr.contains(abort), "{what}: {ended:?}");
        }
    }
}

/// Publishes a message with a deeply nested header, below the level of a library.
async fn publish_nested(vhost: &Vhost, queue: &str) {
    let url = url::Url::parse(&vhost.url()).unwrap();
    let address = (url.host_str().unwrap(), url.port().unwrap());
    let mut peer = Peer::new(TcpStream::connect(address).await.unwrap());
    send(&mut peer, b"AMQP\0\0\x09\x01").await.unwrap();
    let user = percent_encoding::percent_decode_str(url.username()).decode_utf8().unwrap();
    let password = percent_encoding::percent_decode_str(url.password().unwrap());
    let login = format!("\0{user}\0{}", password.decode_utf8().unwrap());
    let start_ok =
        [&amqp::sized(b"")[..], b"\x05PLAIN", &amqp::sized(login.as_bytes()), b"\x05en_US"]
            .concat();
    let name = url.path().trim_start_matches('/');
    let name = percent_encoding::percent_decode_str(name).decode_utf8().unwrap();
    let open = [&[u8::try_from(name.len()).unwrap()][..], name.as_bytes(), b"\0\0"].concat();
    let mut publish = b"\0\0\0".to_vec();
    publish.push(u8::try_from(queue.len()).unwrap());
    publish.extend_from_slice(queue.as_bytes());
    publish.push(0);
    let (header, body) = (amqp::header(1, 1, &amqp::nested(3_000)), amqp::frame(3, 1, b"x"));
    for (bytes, answers) in [
        (vec![], 1),
        (amqp::method(0, 10, 11, &start_ok), 1),
        (amqp::method(0, 10, 31, b"\x07\xff\0\x02\0\0\0\0"), 0),
        (amqp::method(0, 10, 40, &open), 1),
        (amqp::method(1, 20, 10, b"\0"), 1),
        (amqp::method(1, 85, 10, b"\0"), 1),
        // The confirm.
        ([amqp::method(1, 60, 40, &publish), header, body].concat(), 1),
    ] {
        send(&mut peer, &bytes).await.unwrap();
        for _ in 0..answers {
            amqp::read_frame(&mut peer).await.unwrap();
        }
    }
    let _ = peer.shutdown().await;
}

/// Returns a command that holds the lock until its stdin is closed. It then asks whether it
/// still holds the lock.
fn held_until_closed(place: &TestLock, scratch: &Scratch) -> Running {
    let script = r#"echo held >>"$0"; read end; exec "$PROGRAM" verify"#;
    let words = ["exec", LOCK, "--", "sh", "-c", script, &scratch.file("held")];
    let mut command = lockkeeper(place, &words);
    command.env("PROGRAM", built::lockkeeper()).stdin(Stdio::piped());
    Running::start(scratch, "holder", command)
}

/// A waiter reads it as a wake-up, and a holder as a notification.
async fn is_read_while_held(protocol: Protocol, queue: &str) {
    let (place, scratch) = (TestLock::create(protocol).await, Scratch::new());
    create(&place, 1).await;
    let mut holder = held_until_closed(&place, &scratch);
    eventually("it is held", async || !scratch.read("held").is_empty()).await;
    let mut waiter = Running::start(&scratch, "waiter", lockkeeper(&place, &TRUE));
    waiter.until_it_says("waiting for a ").await;
    publish_nested(&place, queue).await;
    drop(holder.process.stdin.take());
    assert_eq!(holder.code().await, Some(0), "{queue}: {}", holder.said());
    assert_eq!(waiter.code().await, Some(0), "{queue}: {}", waiter.said());
}

/// It takes the place of the token, or of the slot's record.
async fn is_read_to_acquire(protocol: Protocol, more: &[&str], queue: &str) {
    let place = TestLock::create(protocol).await;
    let slots = ["semaphore", "create", LOCK, "--slots", "1"];
    succeed(&place, &[&slots[..], more].concat()).await;
    place.purge(queue).await;
    publish_nested(&place, queue).await;
    for _ in 0..2 {
        succeed(&place, &TRUE).await;
    }
}

/// Acquires the lock.
const TRUE: [&str; 6] = ["exec", LOCK, "--timeout", "30s", "--", "true"];

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_nested_deeply_ends_no_client_that_reads_it() {
    let slots = Protocol::default();
    tokio::join!(
        is_read_while_held(slots, "ci.deploy-W"),
        is_read_while_held(Protocol::ExclusiveConsumer, "ci.deploy-1-C"),
        is_read_to_acquire(Protocol::Token(QueueType::Classic), &[], "ci.deploy.semaphore"),
        is_read_to_acquire(slots, &["--lock-delay", "1s"], "ci.deploy-1-F"),
    );
}
