//! Interoperability with the Python clients in `examples/python/`: each shares a queue
//! with ours, and ends as its documentation states.

use std::process::Stdio;

use lockkeeper_pressure::{QueueError, Wait};
use lockkeeper_testkit::redis::{TestQueue, eventually};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::queue::ours;

/// The Python version of Debian's python3-redis.
const PYTHON: &str = "/usr/bin/python3";

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/python");

/// The two clients, which have the same arguments and exit codes.
#[derive(Clone, Copy)]
enum Client {
    Scripts,
    Plain,
}

impl Client {
    fn module(self) -> &'static str {
        match self {
            Self::Scripts => "pressure_client",
            Self::Plain => "pressure_plain_client",
        }
    }

    fn command(self, place: &TestQueue, arguments: &[&str]) -> Command {
        let mut command = Command::new(PYTHON);
        command.arg(format!("{FOLDER}/{}.py", self.module())).args(arguments);
        command.arg(place.queue.as_str()).env("REDIS_URL", &place.url);
        command.env("PRESSURE_PREFIX", place.queue.prefix()).kill_on_drop(true);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn start(self, place: &TestQueue, arguments: &[&str]) -> Child {
        self.command(place, arguments).spawn().unwrap()
    }

    async fn exit_code(self, place: &TestQueue, arguments: &[&str]) -> Option<i32> {
        let mut command = self.command(place, arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.status().await.unwrap().code()
    }
}

fn lines(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{name} {number} äö")).collect()
}

async fn write(child: &mut Child, lines: &[String]) {
    let mut input = child.stdin.take().unwrap();
    input.write_all((lines.join("\n") + "\n").as_bytes()).await.unwrap();
}

/// Fails unless the queue's keys are as after complete operations only.
async fn is_undamaged(place: &TestQueue, count: u64) {
    let seen = ours(place, "me").stat().await.unwrap();
    assert_eq!((seen.produced_messages, seen.consumed_messages), (count, count));
    assert_eq!(seen.produced_bytes, seen.consumed_bytes);
    assert_eq!((seen.not_full, seen.producer_free, seen.consumer_free), (1, 1, 1));
}

/// Returns the elements until the queue is closed, as text.
async fn read_all(place: &TestQueue) -> Vec<String> {
    let queue = ours(place, "reader");
    let mut elements = Vec::new();
    loop {
        match queue.get().await {
            Ok(element) => elements.push(String::from_utf8(element).unwrap()),
            Err(QueueError::Closed) => return elements,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Their producer, our consumer.
async fn elements_arrive_from(client: Client) {
    let place = TestQueue::new().await;
    assert_eq!(client.exit_code(&place, &["--bound", "3", "create"]).await, Some(0));
    let sent = lines("line", 300);
    let putting = async {
        let mut child = client.start(&place, &["put"]);
        write(&mut child, &sent).await;
        assert_eq!(child.wait().await.unwrap().code(), Some(0));
        assert_eq!(client.exit_code(&place, &["close"]).await, Some(0));
    };
    let ((), got) = tokio::join!(putting, read_all(&place));
    assert_eq!(got, sent);
    is_undamaged(&place, 300).await;
}

/// Our producer, their consumer.
async fn elements_arrive_at(client: Client) {
    let place = TestQueue::new().await;
    let queue = ours(&place, "writer");
    queue.create(3).await.unwrap();
    let sent = lines("line", 300);
    let putting = async {
        for line in &sent {
            queue.put(line).await.unwrap();
        }
        queue.close(Wait::Forever).await.unwrap();
    };
    let child = client.start(&place, &["get"]);
    let ((), output) = tokio::join!(putting, child.wait_with_output());
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0), "the queue is closed");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), sent.join("\n") + "\n");
    is_undamaged(&place, 300).await;
}

/// Two producers and two consumers, one of each theirs.
async fn roles_are_shared_with(client: Client) {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(2).await.unwrap();
    let (mine, yours) = (lines("mine", 100), lines("yours", 100));
    let putting = async {
        let mut child = client.start(&place, &["put"]);
        let put = async {
            for line in &mine {
                queue.put(line).await.unwrap();
            }
        };
        tokio::join!(write(&mut child, &yours), put);
        assert_eq!(child.wait().await.unwrap().code(), Some(0));
        queue.close(Wait::Forever).await.unwrap();
    };
    let reader = client.start(&place, &["get"]);
    let reading = async {
        // Ours would have got everything before theirs has started.
        let got = async || queue.stat().await.unwrap().consumed_messages;
        eventually("theirs has got something", async || got().await > 0).await;
        read_all(&place).await
    };
    let ((), got, output) = tokio::join!(putting, reading, reader.wait_with_output());
    let theirs = String::from_utf8(output.unwrap().stdout).unwrap();
    let theirs: Vec<String> = theirs.lines().map(ToOwned::to_owned).collect();
    assert!(!got.is_empty() && !theirs.is_empty(), "{} and {}", got.len(), theirs.len());
    for (sent, name) in [(&mine, "mine"), (&yours, "yours")] {
        let of = |all: &[String]| -> Vec<String> {
            all.iter().filter(|line| line.starts_with(name)).cloned().collect()
        };
        let (ours, theirs) = (of(&got), of(&theirs));
        let place_of = |line: &String| sent.iter().position(|each| each == line);
        assert!(ours.iter().map(place_of).is_sorted() && theirs.iter().map(place_of).is_sorted());
        let mut all: Vec<String> = ours.into_iter().chain(theirs).collect();
        all.sort_by_key(place_of);
        assert_eq!(&all, sent, "each once");
    }
    is_undamaged(&place, 200).await;
}

async fn the_exit_code_names_the_reason(client: Client) {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    let exit_code = async |arguments: &[&str]| client.exit_code(&place, arguments).await;
    for operation in ["get", "close", "length"] {
        assert_eq!(exit_code(&[operation]).await, Some(81), "{operation}: no such queue");
    }
    assert_eq!(exit_code(&["--bound", "1", "create"]).await, Some(0));
    assert_eq!(exit_code(&["create"]).await, Some(82), "exists already");
    assert_eq!(exit_code(&["--timeout", "0.1", "get"]).await, Some(75), "empty");
    queue.put("one").await.unwrap();
    let mut full = client.start(&place, &["--timeout", "0.1", "put"]);
    write(&mut full, &lines("two", 1)).await;
    assert_eq!(full.wait().await.unwrap().code(), Some(75), "full");
    let () = place.run(&["DEL", &place.key(":consumer_free")]).await;
    assert_eq!(exit_code(&["--timeout", "0.1", "get"]).await, Some(75), "another has the role");
    let () = place.run(&["LPUSH", &place.key(":consumer_free"), "1"]).await;
    assert_eq!(exit_code(&["close"]).await, Some(0));
    assert_eq!(exit_code(&["close"]).await, Some(82), "closed already");
    let mut closed = client.start(&place, &["put"]);
    write(&mut closed, &lines("two", 1)).await;
    assert_eq!(closed.wait().await.unwrap().code(), Some(83), "closed");
    assert_eq!(exit_code(&["get"]).await, Some(0), "the rest, then the end");
    assert_eq!(queue.get().await, Err(QueueError::Closed));
    let mut nowhere = client.command(&place, &["length"]);
    nowhere.env("REDIS_URL", "redis://127.0.0.1:1").stdin(Stdio::null());
    assert_eq!(nowhere.status().await.unwrap().code(), Some(69));
}

/// A consumer that waits learns of the close, and of the deletion.
async fn a_wait_ends_with_the_queue(client: Client) {
    for (ending, code) in [("close", 0), ("delete", 81)] {
        let place = TestQueue::new().await;
        let queue = ours(&place, "me");
        queue.create(1).await.unwrap();
        let mut waiting = client.start(&place, &["get"]);
        eventually("it has asked", async || queue.stat().await.unwrap().consumer.id.is_some())
            .await;
        match ending {
            "close" => queue.close(Wait::Forever).await.unwrap(),
            _ => queue.delete(Wait::Forever).await.unwrap(),
        }
        assert_eq!(waiting.wait().await.unwrap().code(), Some(code), "{ending}");
    }
}

macro_rules! with_clients {
    ($($test:ident),* $(,)?) => {
        mod scripts { $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test(super::Client::Scripts).await; }
        )* }
        mod plain { $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() { super::$test(super::Client::Plain).await; }
        )* }
    };
}

with_clients! {
    elements_arrive_from,
    elements_arrive_at,
    roles_are_shared_with,
    the_exit_code_names_the_reason,
    a_wait_ends_with_the_queue,
}

/// Runs a Python program in the folder of the clients and returns its output.
fn python(place: &TestQueue, program: &str) -> String {
    let mut command = std::process::Command::new(PYTHON);
    command.args(["-B", "-c", program]).current_dir(FOLDER);
    command.env("REDIS_URL", &place.url).env("PLACE", place.queue.prefix());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn the_client_by_scripts_is_a_module_with_batches_and_returns_unused_elements() {
    let place = TestQueue::new().await;
    let program = r#"
import os, pressure_client
queue = pressure_client.Queue(
    pressure_client.connect(os.environ["REDIS_URL"]), "jobs", os.environ["PLACE"])
queue.create()
queue.put(*(b"%d" % number for number in range(1200)))
first = queue.get(most=3)
queue.give_back(first[1:])
queue.close()
print(len(queue), first, list(queue) == [b"%d" % number for number in range(1, 1200)])
"#;
    assert_eq!(
        python(&place, program),
        "1199 [b'0', b'1', b'2'] True
"
    );
    is_undamaged(&place, 1200).await;
}

/// SIGKILL at random moments: the client by scripts leaves whole operations.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_by_scripts_that_is_killed_leaves_nothing_to_repair() {
    let place = TestQueue::new().await;
    let queue = ours(&place, "me");
    queue.create(0).await.unwrap();
    for round in 0..5 {
        let mut child = Client::Scripts.start(&place, &["put"]);
        let pid = child.id().unwrap().to_string();
        let mut input = child.stdin.take().unwrap();
        let sent = lines("line", 2000);
        let before = place.length("").await;
        let killed = async {
            eventually("it puts", async || place.length("").await > before + round * 20).await;
            std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap();
        };
        // It may fail, because the client is dead.
        let writing = async { input.write_all((sent.join("\n") + "\n").as_bytes()).await };
        let ((), _) = tokio::join!(killed, writing);
        child.wait().await.unwrap();
    }
    let count = place.length("").await;
    queue.close(Wait::Forever).await.unwrap();
    assert_eq!(read_all(&place).await.len() as u64, count);
    is_undamaged(&place, count).await;
}

#[tokio::test]
async fn importing_an_example_runs_nothing() {
    let place = TestQueue::new().await;
    let mut names: Vec<String> = std::fs::read_dir(FOLDER)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 5, "{names:?}");
    assert_eq!(python(&place, &format!("import {}", names.join(", "))), "");
}
