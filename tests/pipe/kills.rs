//! `kill -9` at any time: no role stays taken, the tokens are right, and no element is
//! lost except those that a killed `get` had taken.

use std::process::Stdio;
use std::time::Duration;

use futures::future::join_all;
use lockkeeper_testkit::environment::signal;
use lockkeeper_testkit::redis::{TestQueue, eventually};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};

use crate::pipe::{Outcome, PATIENCE, counter, end, finish, is_at_rest, queue, succeed};

/// Number of killed processes of each kind, and how many at a time.
const KILLS: usize = 250;
const LANES: usize = 5;

/// Batch size of `get`.
const BATCH: u64 = 1000;

/// How long processes live, starting included: a random time that is long enough for about
/// half of them to get to work, however busy the machine is.
struct Lifetimes {
    longest: Duration,
}

impl Lifetimes {
    fn new() -> Self {
        Self { longest: Duration::from_millis(120) }
    }

    fn next(&self) -> Duration {
        self.longest.mul_f64(rand::random_range(0.0..1.0))
    }

    /// Whether the last process had got to work.
    fn learn(&mut self, amid: bool) {
        let longest = self.longest.mul_f64(if amid { 0.9 } else { 1.1 });
        self.longest = longest.clamp(Duration::from_millis(120), Duration::from_secs(5));
    }
}

/// Writes `ROUND:1`, `ROUND:2` and so on until the pipe has no reader.
async fn feed(mut stdin: ChildStdin, round: usize) {
    for start in (1..).step_by(200) {
        let lines: Vec<String> =
            (start..start + 200).map(|number: u64| format!("{round}:{number}\n")).collect();
        if stdin.write_all(lines.concat().as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns whether Redis has no connection of this process any more, so that it has run
/// all of its commands.
async fn is_gone(place: &TestQueue, pid: u32) -> bool {
    let clients: String = place.run(&["CLIENT", "LIST"]).await;
    !clients.contains(&format!("/{pid}/"))
}

#[tokio::test(flavor = "multi_thread")]
async fn put_may_be_killed_at_any_moment() {
    let channels = join_all((0..LANES).map(|_| kill_puts(KILLS / LANES))).await;
    let amid: usize = channels.into_iter().sum();
    println!("{KILLS} puts killed, {amid} of them while elements flowed");
    assert!(amid > KILLS / 5, "{amid} of {KILLS} had put anything");
}

/// Returns how many of them had put something.
async fn kill_puts(rounds: usize) -> usize {
    let place = TestQueue::new().await;
    succeed(&place, "create", &["--bound", "64"]).await;
    let mut getting = queue(&place, "get", &[]).spawn().unwrap();
    let mut got = BufReader::new(getting.stdout.take().unwrap()).lines();
    let (mut amid, mut before, mut lifetimes) = (0, 0, Lifetimes::new());
    for round in 0..rounds {
        let mut putting = queue(&place, "put", &[]).stdin(Stdio::piped()).spawn().unwrap();
        let feeding = tokio::spawn(feed(putting.stdin.take().unwrap(), round));
        let pid = putting.id().unwrap();
        let lifetime = lifetimes.next();
        let killed = tokio::spawn(async move {
            tokio::time::sleep(lifetime).await;
            end(putting, "KILL").await
        });
        // The reader keeps up, and is not done before the counter stops.
        let mut lines = 0;
        let mut is_over = false;
        loop {
            if is_over && counter(&place, ":stats:produced_messages").await == before + lines {
                break;
            }
            is_over = is_over || killed.is_finished() && is_gone(&place, pid).await;
            let line = tokio::time::timeout(Duration::from_millis(10), got.next_line()).await;
            if let Ok(line) = line {
                lines += 1;
                assert_eq!(line.unwrap().unwrap(), format!("{round}:{lines}"), "in order, once");
            }
        }
        assert_eq!(killed.await.unwrap().code, None, "it was killed");
        feeding.abort();
        is_at_rest(&place).await;
        assert_eq!(place.length("").await, 0);
        before += lines;
        amid += usize::from(lines > 0);
        lifetimes.learn(lines > 0);
    }
    // The queue was not closed, and the next client finds it intact.
    let outcome = crate::pipe::put(&place, &[], b"last\n").await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(got.next_line().await.unwrap().as_deref(), Some("last"));
    assert_eq!(got.next_line().await.unwrap(), None);
    amid
}

#[tokio::test(flavor = "multi_thread")]
async fn get_may_be_killed_at_any_moment_and_takes_no_more_along_than_a_batch() {
    let channels = join_all((0..LANES).map(|_| end_gets(KILLS / LANES, "KILL"))).await;
    let amid: usize = channels.iter().map(|channel| channel.0).sum();
    let lost: u64 = channels.iter().map(|channel| channel.1).sum();
    println!("{KILLS} gets killed, {amid} of them while elements flowed; they took {lost} along");
    assert!(amid > KILLS / 5, "{amid} of {KILLS} had got anything");
}

#[tokio::test(flavor = "multi_thread")]
async fn get_may_be_interrupted_at_any_moment_and_takes_nothing_along() {
    let channels = join_all((0..LANES).map(|_| end_gets(20, "INT"))).await;
    let amid: usize = channels.iter().map(|channel| channel.0).sum();
    let lost: u64 = channels.iter().map(|channel| channel.1).sum();
    assert!(amid > LANES * 20 / 5, "{amid} had got anything");
    assert_eq!(lost, 0);
}

/// Ends one `get` after the other with this signal. Returns how many of them had got
/// something, and how many elements they took with them.
async fn end_gets(rounds: usize, signal: &str) -> (usize, u64) {
    let place = TestQueue::new().await;
    let bound = 64;
    succeed(&place, "create", &["--bound", "64"]).await;
    let mut putting = queue(&place, "put", &[]).stdin(Stdio::piped()).spawn().unwrap();
    let feeding = tokio::spawn(feed(putting.stdin.take().unwrap(), 0));
    let (mut amid, mut lost, mut next, mut lifetimes) = (0, 0, 1, Lifetimes::new());
    for _ in 0..rounds {
        let mut getting = queue(&place, "get", &["-0"]).spawn().unwrap();
        let mut stdout = getting.stdout.take().unwrap();
        let reading = tokio::spawn(async move {
            let mut text = Vec::new();
            stdout.read_to_end(&mut text).await.unwrap();
            text
        });
        tokio::time::sleep(lifetimes.next()).await;
        let pid = getting.id().unwrap();
        let outcome = end_again_if_needed(getting, signal).await;
        // A process that was interrupted before it handled signals was ended by it too.
        assert!(matches!(outcome.code, None | Some(130)), "{outcome:?}");
        eventually("Redis has noticed", async || is_gone(&place, pid).await).await;
        let text = tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap();
        // Incomplete elements were not delivered.
        let whole = text.iter().rposition(|&byte| byte == 0).map_or(0, |at| at + 1);
        let elements = text[..whole].split(|&byte| byte == 0).filter(|e| !e.is_empty());
        let mut count = 0;
        for element in elements {
            assert_eq!(element, format!("0:{next}").as_bytes(), "in order, once");
            next += 1;
            count += 1;
        }
        amid += usize::from(count > 0);
        lifetimes.learn(count > 0);
        // The producer continues and fills the capacity. Returned elements may exceed the
        // bound.
        let is_full = async || place.length("").await >= bound;
        eventually("the producer goes on", is_full).await;
        is_at_rest(&place).await;
        let consumed = counter(&place, ":stats:consumed_messages").await;
        let length = place.length("").await;
        assert_eq!(counter(&place, ":stats:produced_messages").await, consumed + length);
        let front: Vec<String> = place.run(&["LRANGE", &place.key(""), "-1", "-1"]).await;
        assert_eq!(front, [format!("0:{}", consumed + 1)], "the counter shows the next one");
        let taken_along = consumed + 1 - next;
        assert!(taken_along <= BATCH, "{taken_along}");
        lost += taken_along;
        next = consumed + 1;
    }
    feeding.abort();
    drop(putting);
    (amid, lost)
}

/// Ends a process with a signal, which is sent once more if the process goes on: a signal
/// that arrives within the first milliseconds is lost now and then.
async fn end_again_if_needed(child: Child, name: &str) -> Outcome {
    let pid = child.id().expect("it runs");
    signal(pid, name);
    let outcome = finish(child);
    tokio::pin!(outcome);
    match tokio::time::timeout(Duration::from_secs(10), &mut outcome).await {
        Ok(outcome) => outcome,
        Err(_) => {
            signal(pid, name);
            outcome.await
        }
    }
}
