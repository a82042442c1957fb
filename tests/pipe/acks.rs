//! `get --ack` and `run`: elements stay in flight until they are used, and come again if
//! their process dies.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use lockkeeper_pressure::{ObservedQueue, Queue, QueueOptions, Wait};
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::signal;
use lockkeeper_testkit::redis::{TestQueue, eventually, random_word};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::pipe::{end, fill, finish, outcome, queue, run, succeed};

/// Number of killed processes of each kind, and in how many queues at a time.
const KILLS: usize = 250;
const LANES: usize = 5;

/// A directory of a test, removed with it.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("lockkeeper-{}", random_word()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    pub(super) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the lines of a file. Empty if there is none.
pub(super) fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

pub(super) async fn seen(place: &TestQueue) -> ObservedQueue {
    place.store().observe(&place.queue).await.unwrap()
}

/// Returns `lockkeeper queue run jobs … -- sh -c SCRIPT FILE`.
pub(super) fn runner(place: &TestQueue, arguments: &[&str], script: &str, file: &Path) -> Command {
    let mut command = queue(place, "run", arguments);
    command.args(["--", "sh", "-c", script]).arg(file);
    command
}

/// Appends the number of deliveries and the element to the file.
const NOTE: &str = r#"IFS= read -r line; echo "$QUEUE_DELIVERIES $line" >> "$0""#;

/// Puts 1, 2 and so on until it is stopped, then closes the queue. Returns the last one.
async fn produce(place: &TestQueue, stop: CancellationToken) -> u64 {
    let options = QueueOptions::default().with_client_id("the producer");
    let queue = Queue::new(place.settings(), place.queue.clone(), options);
    let mut last = 0;
    while !stop.is_cancelled() {
        let batch: Vec<String> = (last + 1..=last + 8).map(|number| number.to_string()).collect();
        queue.put_batch(&batch, Wait::Forever).await.unwrap();
        last += 8;
    }
    queue.close(Wait::Forever).await.unwrap();
    last
}

/// Runs two processes at a time, each for a random time that grows until half of them get
/// to work, kills them with SIGKILL, and returns each one's result. `start` gets the number
/// of the process.
async fn kill_pairs<T>(
    rounds: usize,
    start: impl AsyncFn(usize, Duration) -> T,
    has_worked: impl Fn(&T) -> bool,
) -> Vec<T> {
    let (mut longest, mut all) = (0.12_f64, Vec::new());
    for round in 0..rounds / 2 {
        let life = || Duration::from_secs_f64(longest * rand::random_range(0.0..1.0));
        let (one, other) = (start(2 * round, life()), start(2 * round + 1, life()));
        let (one, other) = futures::join!(one, other);
        let amid = [&one, &other].into_iter().filter(|result| has_worked(result)).count();
        longest = (longest * [1.2, 1.0, 0.85][amid]).clamp(0.12, 5.0);
        all.extend([one, other]);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn get_with_ack_may_be_killed_at_any_moment_and_loses_nothing() {
    let channels = join_all((0..LANES).map(|_| kill_gets(KILLS / LANES))).await;
    let (amid, twice) =
        channels.iter().fold((0, 0), |sum, channel| (sum.0 + channel.0, sum.1 + channel.1));
    println!("{KILLS} gets killed, {amid} of them while elements flowed; {twice} came twice");
    assert!(amid > KILLS / 5, "{amid} of {KILLS} had got anything");
}

/// Returns how many of them had got something, and how many elements came more than once.
async fn kill_gets(rounds: usize) -> (usize, usize) {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "64"]).await;
    let stop = CancellationToken::new();
    let start = async |_, life| {
        let mut getting = queue(&place, "get", &["--ack", "--lease", "1s"]).spawn().unwrap();
        let mut stdout = getting.stdout.take().unwrap();
        let reading = tokio::spawn(async move {
            let mut text = String::new();
            stdout.read_to_string(&mut text).await.unwrap();
            text
        });
        tokio::time::sleep(life).await;
        end(getting, "KILL").await;
        reading.await.unwrap()
    };
    let killing = async {
        let texts = kill_pairs(rounds, start, |text| text.contains('\n')).await;
        stop.cancel();
        texts
    };
    let draining = async {
        stop.cancelled().await;
        String::from_utf8(succeed(&place, "get", &["--ack"]).await).unwrap()
    };
    let (last, texts, rest) = tokio::join!(produce(&place, stop.clone()), killing, draining);
    let amid = texts.iter().filter(|text| text.contains('\n')).count();
    // The last line of a process that was killed may be incomplete.
    let whole = |text: &String| text.rfind('\n').map_or(0, |end| end + 1);
    let got: Vec<u64> = texts
        .iter()
        .chain([&rest])
        .flat_map(|text| text[..whole(text)].lines())
        .map(|line| line.parse().unwrap())
        .collect();
    let different: BTreeSet<u64> = got.iter().copied().collect();
    assert_eq!(different, (1..=last).collect());
    assert_eq!(seen(&place).await.drift(), 0);
    succeed(&place, "delete", &[]).await;
    assert!(place.present().await.is_empty(), "{:?}", place.dump().await);
    (amid, got.len() - different.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_may_be_killed_at_any_moment_and_loses_nothing_and_keeps_the_order() {
    let channels = join_all((0..LANES).map(|_| kill_runs(KILLS / LANES))).await;
    let amid: usize = channels.into_iter().sum();
    println!("{KILLS} runs killed, {amid} of them while elements flowed");
    assert!(amid > KILLS / 5, "{amid} of {KILLS} had processed anything");
}

/// Returns how many of them had processed something.
async fn kill_runs(rounds: usize) -> usize {
    let (place, folder) = (TestQueue::new().await, Folder::new());
    succeed(&place, "create", &["--bound", "64"]).await;
    let stop = CancellationToken::new();
    let start = async |number: usize, life| {
        let file = folder.file(number.to_string());
        let running = runner(&place, &["--lease", "1s"], NOTE, &file).spawn().unwrap();
        tokio::time::sleep(life).await;
        end(running, "KILL").await;
        file
    };
    let killing = async {
        let files = kill_pairs(rounds, start, |file| file.exists()).await;
        stop.cancel();
        files
    };
    let draining = async {
        stop.cancelled().await;
        let file = folder.file("rest");
        let rest = outcome(runner(&place, &["--concurrency", "4"], NOTE, &file)).await;
        assert_eq!((rest.code, rest.stderr.as_str()), (Some(0), ""));
        file
    };
    let (last, files, rest) = tokio::join!(produce(&place, stop.clone()), killing, draining);
    let mut got = BTreeSet::new();
    for file in files.iter().chain([&rest]) {
        let all = lines(file);
        let all = all.iter().map(|line| line.split_once(' ').unwrap());
        let all: Vec<(u64, u64)> = all
            .map(|(count, element)| (count.parse().unwrap(), element.parse().unwrap()))
            .collect();
        got.extend(all.iter().map(|(_, element)| *element));
        // Four commands at a time end in any order.
        let first = all.iter().filter(|(count, _)| *count == 1).map(|(_, element)| element);
        assert!(file == &rest || first.is_sorted(), "{all:?}");
    }
    assert_eq!(got, (1..=last).collect());
    succeed(&place, "delete", &[]).await;
    assert!(place.present().await.is_empty(), "{:?}", place.dump().await);
    files.iter().filter(|file| file.exists()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn elements_are_acknowledged_when_the_reader_has_taken_them() {
    for (name, code) in [("KILL", None), ("TERM", Some(143))] {
        let place = TestQueue::new().await;
        succeed(&place, "create", &[]).await;
        fill(&place, b"a\nb\nc\n").await;
        let mut getting = queue(&place, "get", &["--ack", "--lease", "2s"]).spawn().unwrap();
        let mut stdout = BufReader::new(getting.stdout.take().unwrap()).lines();
        let flying = async |elements| {
            let seen = seen(&place).await;
            (seen.in_flight, seen.length) == elements
        };
        eventually("the first is in flight", async || flying((1, 2)).await).await;
        assert_eq!(stdout.next_line().await.unwrap().as_deref(), Some("a"));
        // The next batch, of which the reader takes nothing.
        eventually("the others are in flight", async || flying((2, 0)).await).await;
        let ended = end(getting, name).await;
        assert_eq!(ended.code, code, "{ended:?}");
        if name == "TERM" {
            assert!(
                ended.stderr.contains("1 element (1 byte) written; 2 elements given back"),
                "{ended:?}"
            );
            assert_eq!(seen(&place).await.leases_ended, 2, "without waiting for the lease");
        }
        assert_eq!(succeed(&place, "get", &["--ack", "--count", "2"]).await, b"b\nc\n");
        assert_eq!(seen(&place).await.in_flight, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn get_with_ack_transfers_many_and_large_elements_once() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let numbers = crate::pipe::seq(1, 20_000);
    let large = "x".repeat(3 << 20) + "\n";
    let sent = [numbers.as_str(), &large].concat();
    let outcome = crate::pipe::put(&place, &[], sent.as_bytes()).await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(succeed(&place, "get", &["--ack", "--delete"]).await == sent.as_bytes());
    assert!(place.present().await.is_empty(), "{:?}", place.dump().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_element_whose_command_fails_comes_again_and_then_is_a_dead_letter() {
    let (place, folder) = (TestQueue::new().await, Folder::new());
    let file = folder.file("log");
    succeed(&place, "create", &[]).await;
    let mut create = crate::pipe::program(&place, built::lockkeeper());
    create.args(["queue", "create", "letters", "--bound", "1"]);
    assert_eq!(outcome(create).await.code, Some(0));
    let lines_in = crate::pipe::put(&place, &[], b"good\nbad\nworse\nlast\n").await;
    assert_eq!(lines_in.code, Some(0));
    let script = r#"IFS= read -r line; echo "$QUEUE_NAME $QUEUE_DELIVERIES $line" >> "$0"
        case $line in bad|worse) exit 3;; esac"#;
    let arguments = ["--attempts", "2", "--dead-letter", "letters"];
    let ran = outcome(runner(&place, &arguments, script, &file)).await;
    assert_eq!(ran.code, Some(85), "{ran:?}");
    assert!(
        ran.stderr.ends_with("jobs: 2 elements processed; 2 returned; 2 moved as dead letters\n")
    );
    assert!(ran.stderr.contains("exit status: 3: the element returns in 1 s (delivery 1)"));
    assert!(ran.stderr.contains("exit status: 3: the element was put into letters (delivery 2)"));
    let mut got = lines(&file);
    got.sort();
    let expected = ["1 bad", "1 good", "1 last", "1 worse", "2 bad", "2 worse"];
    assert_eq!(got, expected.map(|line| format!("jobs {line}")));
    // Regardless of the bound: an element must be somewhere.
    let letters = format!("{}:letters", place.queue.prefix());
    let dead: Vec<String> = place.run(&["LRANGE", &letters, "0", "-1"]).await;
    assert_eq!(dead, ["worse", "bad"]);
    assert_eq!(seen(&place).await.in_flight, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_commands_run_at_a_time_as_allowed_and_each_gets_its_element() {
    let (place, folder) = (TestQueue::new().await, Folder::new());
    let file = folder.file("log");
    succeed(&place, "create", &[]).await;
    let large = "y".repeat(1 << 20);
    let input = ["a\nb\n", &large, "\n"].concat();
    assert_eq!(crate::pipe::put(&place, &[], input.as_bytes()).await.code, Some(0));
    // Each waits for the others. The third does not read all of its element.
    let script = r#"head -c 1 >> "$0"; until [ "$(wc -c < "$0")" = 3 ]; do sleep 0.1; done"#;
    let ran = outcome(runner(&place, &["--concurrency", "3"], script, &file)).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let mut got = std::fs::read(&file).unwrap();
    got.sort_unstable();
    assert_eq!(got, b"aby");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_signal_run_takes_nothing_and_waits_and_a_second_one_is_forwarded() {
    let (place, folder) = (TestQueue::new().await, Folder::new());
    succeed(&place, "create", &[]).await;
    fill(&place, b"a\nb\n").await;
    let is_there = async |file: &Path| eventually("the file", async || file.exists()).await;

    let (file, go) = (folder.file("one"), folder.file("one.go"));
    let script = r#"echo started > "$0"; until [ -e "$0.go" ]; do sleep 0.1; done"#;
    let running = runner(&place, &[], script, &file).spawn().unwrap();
    is_there(&file).await;
    signal(running.id().unwrap(), "TERM");
    let ended = tokio::spawn(finish(running));
    eventually("the second element stays", async || seen(&place).await.length == 1).await;
    std::fs::write(&go, "").unwrap();
    let ended = ended.await.unwrap();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(ended.stderr.ends_with("stopped by SIGTERM. 1 element processed\n"), "{ended:?}");
    assert_eq!((seen(&place).await.length, seen(&place).await.in_flight), (1, 0));

    let file = folder.file("two");
    let script = r#"trap 'echo ended > "$0.end"; exit 0' INT
        echo started > "$0"; while :; do sleep 0.1; done"#;
    let mut running = runner(&place, &[], script, &file).spawn().unwrap();
    let mut said = BufReader::new(running.stderr.take().unwrap()).lines();
    is_there(&file).await;
    let pid = running.id().unwrap();
    signal(pid, "INT");
    let waits = said.next_line().await.unwrap().unwrap();
    assert!(waits.contains("waiting for 1 command"), "{waits}");
    assert!(!folder.file("two.end").exists());
    signal(pid, "INT");
    let ended = finish(running).await;
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(folder.file("two.end").exists());
    assert_eq!(seen(&place).await.in_flight, 0, "it exited with 0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_can_not_run_takes_no_element_along() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, b"a\n").await;
    for (command, code) in [("/nowhere/at-all", 127), ("/etc/passwd", 126)] {
        let ran = run(&place, "run", &["--", command]).await;
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert_eq!(seen(&place).await.leases_ended, 1);
    }
    let table = String::from_utf8(succeed(&place, "doctor", &[]).await).unwrap();
    assert!(table.contains("LeasesEnded"), "{table}");
    assert!(table.contains("the next get of Lockkeeper returns them"), "{table}");
    assert_eq!(succeed(&place, "get", &["--count", "1"]).await, b"a\n");
    for (verb, arguments) in [
        ("run", &["--attempts", "2", "--", "true"][..]),
        ("run", &["--attempts", "2", "--dead-letter", "jobs", "--", "true"]),
        ("run", &["--lease", "10ms", "--", "true"]),
        ("run", &["--concurrency", "0", "--", "true"]),
        ("run", &[]),
        ("get", &["--lease", "5s"]),
    ] {
        let ran = run(&place, verb, arguments).await;
        assert_eq!(ran.code, Some(64), "{verb} {arguments:?}: {ran:?}");
    }
    let missing =
        run(&place, "run", &["--attempts", "2", "--dead-letter", "no", "--", "true"]).await;
    assert_eq!(missing.code, Some(81), "{missing:?}");
    let empty = run(&place, "run", &["--no-wait", "--", "true"]).await;
    assert_eq!(empty.code, Some(75), "{empty:?}");
}
