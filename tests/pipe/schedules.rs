//! Random schedules of the commands of one queue: processes that are killed or stopped,
//! outputs that can't be written, a key that is lost, deletions that are refused. Every
//! element is accounted for. See `queue::schedules::accounts` for many more, without
//! processes.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use lockkeeper_testkit::built;
use lockkeeper_testkit::environment::is_soak;
use lockkeeper_testkit::redis::TestQueue;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::pipe::acks::{Folder, lines, runner, seen};
use crate::pipe::{end, fill, outcome, program, run, seq, shell, succeed};

const STEPS: usize = 8;
const AT_A_TIME: usize = 4;

/// Notes its element, unless that ends in 7: then it fails.
const NOTE: &str = r#"IFS= read -r line; case $line in *7) exit 3;; esac; echo "$line" >> "$0""#;
const DEAD: [&str; 4] = ["--attempts", "2", "--dead-letter", "letters"];

struct Schedule {
    place: TestQueue,
    folder: Folder,
    random: SmallRng,
    put: usize,
    got: BTreeSet<String>,
}

impl Schedule {
    async fn step(&mut self) {
        let most = self.random.random_range(1..4).to_string();
        match self.random.random_range(0..8) {
            0 | 1 => {
                let last = self.put + self.random.random_range(1..12);
                fill(&self.place, seq(self.put + 1, last).as_bytes()).await;
                self.put = last;
            }
            2 => self.get(&["--no-wait", "--count", &most]).await,
            3 => self.get(&["--no-wait", "--ack", "--count", &most]).await,
            4 => {
                let ack = ["", "--ack"][self.random.random_range(0..2)];
                let line = format!("lockkeeper queue get jobs --no-wait {ack} >/dev/full");
                let got = outcome(shell(&self.place, &line)).await;
                assert!(matches!(got.code, Some(73 | 75)), "{line}: {got:?}");
            }
            5 | 6 => self.run_and_stop().await,
            _ => self.lose_and_refuse().await,
        }
    }

    async fn get(&mut self, arguments: &[&str]) {
        let got = run(&self.place, "get", arguments).await;
        assert!(matches!(got.code, Some(0 | 75)), "{got:?}");
        self.got.extend(got.text().lines().map(ToOwned::to_owned));
    }

    /// Stops a run at any time: by KILL, or by TERM until it ends.
    async fn run_and_stop(&mut self) {
        let arguments = [&["--lease", "1s", "--concurrency", "2"], &DEAD[..]].concat();
        let mut running = runner(&self.place, &arguments, NOTE, &self.folder.file("log"));
        let running = running.spawn().unwrap();
        let life = Duration::from_millis(self.random.random_range(0..600));
        tokio::time::sleep(life).await;
        let signal = ["KILL", "TERM"][self.random.random_range(0..2)];
        end(running, signal).await;
    }

    async fn lose_and_refuse(&mut self) {
        let place = &self.place;
        let () = place.run(&["DEL", &place.key(":bound")]).await;
        assert_eq!(run(place, "stat", &[]).await.code, Some(81));
        succeed(place, "create", &["--adopt"]).await;
        let seen = seen(place).await;
        if seen.length + seen.in_flight > 0 {
            assert_eq!(run(place, "delete", &[]).await.code, Some(64));
        }
    }

    /// Processes the remaining elements, and checks the whereabouts of every element.
    async fn end(mut self) {
        let log = self.folder.file("log");
        succeed(&self.place, "close", &[]).await;
        let arguments = [&["--concurrency", "4"], &DEAD[..]].concat();
        let ran = outcome(runner(&self.place, &arguments, NOTE, &log)).await;
        assert!(matches!(ran.code, Some(0 | 85)), "{ran:?}");
        let letters = format!("{}:letters", self.place.queue.prefix());
        let dead: Vec<String> = self.place.run(&["LRANGE", &letters, "0", "-1"]).await;
        self.got.extend(lines(&log));
        self.got.extend(dead);
        let put: BTreeSet<String> = (1..=self.put).map(|number| number.to_string()).collect();
        assert_eq!(self.got, put);
        let seen = seen(&self.place).await;
        assert_eq!((seen.length, seen.in_flight, seen.drift()), (0, 0, 0));
        succeed(&self.place, "delete", &[]).await;
        assert_eq!(self.place.present().await, [""; 0]);
    }
}

async fn schedule(seed: u64) {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let mut create = program(&place, built::lockkeeper());
    create.args(["queue", "create", "letters"]);
    assert_eq!(outcome(create).await.code, Some(0));
    let random = SmallRng::seed_from_u64(seed);
    let (folder, got) = (Folder::new(), BTreeSet::new());
    let mut schedule = Schedule { place, folder, random, put: 0, got };
    for _ in 0..STEPS {
        schedule.step().await;
    }
    schedule.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_account_for_every_element_whatever_ends_them() {
    let schedules = if is_soak() { 500 } else { 20 };
    let first: u64 = rand::random::<u32>().into();
    println!("seeds from {first}");
    futures::stream::iter(first..first + schedules)
        .for_each_concurrent(AT_A_TIME, async |seed| {
            tokio::spawn(schedule(seed))
                .await
                .unwrap_or_else(|panic| panic!("seed {seed}: {panic}"));
        })
        .await;
}
