//! The pipeline of examples/, with standard programs in place of the user's programs.

use lockkeeper_testkit::redis::{TestQueue, eventually};
use serde::Deserialize;
use serde_json::Value;
use tokio::process::Child;

use crate::pipe::{content, end, fill, finish, seq, shell, succeed};

/// Returns the script of each Job, with these two programs for listing and for
/// processing.
fn scripts(list: &str, work: &str) -> [String; 2] {
    let script = |script: String| {
        let script = script.replace("/usr/local/bin/list-work", list);
        script.replace("/usr/local/bin/do-work", work)
    };
    let scripts: Vec<String> =
        scripts_of("pressure-queue/pipeline.yaml").into_iter().map(script).collect();
    scripts.try_into().expect("two Jobs")
}

/// Returns the scripts that the Pods of an example run.
fn scripts_of(file: &str) -> Vec<String> {
    let file = format!("{}/examples/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).unwrap();
    let script = |document: serde_yaml::Deserializer| {
        let object = Value::deserialize(document).unwrap();
        let arguments = object.pointer("/spec/template/spec/containers/0/args")?.as_array()?;
        let words: Vec<&str> = arguments.iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(words[..4], ["bash", "-euo", "pipefail", "-c"]);
        Some("set -euo pipefail\n".to_owned() + words[4])
    };
    serde_yaml::Deserializer::from_str(&text).filter_map(script).collect()
}

fn start(place: &TestQueue, script: &str) -> Child {
    shell(place, script).env("QUEUE", place.queue.as_str()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pipeline_of_the_examples_does_all_its_work_and_leaves_no_queue() {
    let place = TestQueue::new().await;
    let [list, work] = scripts("seq 1 1500", "echo");
    let (producer, consumer) = (start(&place, &list), start(&place, &work));
    // Both wait for the queue.
    succeed(&place, "create", &["--bound", "100"]).await;
    let (producer, consumer) = tokio::join!(finish(producer), finish(consumer));
    assert_eq!(producer.code, Some(0), "{producer:?}");
    assert_eq!(consumer.code, Some(0), "{consumer:?}");
    let said = consumer.text().replace("false\n", "").replace("true\n", "");
    assert!(said == seq(1, 1500), "{consumer:?}");
    assert_eq!(place.present().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_consumer_of_the_examples_returns_the_elements_it_has_not_begun() {
    let place = TestQueue::new().await;
    let [_, work] = scripts("true", "sh -c 'sleep 0.05; echo $0 >&2'");
    succeed(&place, "create", &[]).await;
    fill(&place, seq(1, 40).as_bytes()).await;
    let consumer = start(&place, &work);
    eventually("it works", async || place.length("").await < 30).await;
    let outcome = end(consumer, "TERM").await;
    assert_eq!(outcome.code, Some(143), "{outcome:?}");
    assert!(outcome.stderr.contains("given back to the queue"), "{outcome:?}");
    let is_work = |line: &&str| line.parse::<u32>().is_ok();
    let done = outcome.stderr.lines().filter(is_work).count();
    assert!((3..40).contains(&done), "{outcome:?}");
    let rest: Vec<String> = (done + 1..=40).map(|number| number.to_string()).collect();
    assert_eq!(content(&place).await, rest);
}

/// Starts a worker of the examples, whose jobs take this long and write to a file.
fn worker(place: &TestQueue, job_seconds: f64, log: &str) -> Child {
    let [script] = scripts_of("exec/workers.yaml").try_into().expect("one Deployment");
    let job = format!("sh -c 'echo begin $0 $1; sleep {job_seconds}; echo end $0 $1'");
    let script = script.replace("/usr/local/bin/do-job", &job);
    let mut worker = shell(place, &format!("exec >>'{log}'; {script}"));
    worker.env("QUEUE", place.queue.as_str()).env("PREFIX", place.queue.prefix());
    worker.env("POD", "worker").spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_worker_of_the_examples_finishes_its_job_and_takes_no_other_one() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    fill(&place, b"c0 a\nc0 b\nc0 c\n").await;
    let log = format!("{}/{}.log", env!("CARGO_TARGET_TMPDIR"), place.queue.prefix());
    let worker = worker(&place, 2.0, &log);
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("it works", async || said().contains("begin")).await;
    let outcome = end(worker, "TERM").await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(said().lines().skip(1).collect::<Vec<_>>(), ["begin c0 a", "end c0 a"]);
    std::fs::remove_file(&log).unwrap();
    assert_eq!(content(&place).await, ["c0 b", "c0 c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_workers_of_the_examples_run_one_job_of_a_customer_at_a_time() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let jobs: Vec<String> = (0..24).map(|number| format!("c{} job-{number}", number % 3)).collect();
    fill(&place, (jobs.join("\n") + "\n").as_bytes()).await;
    succeed(&place, "close", &[]).await;
    // A common file, so that the lines of all workers are in order.
    let log = format!("{}/{}.log", env!("CARGO_TARGET_TMPDIR"), place.queue.prefix());
    let workers = (0..3).map(|_| finish(worker(&place, 0.1, &log)));
    for outcome in futures::future::join_all(workers.collect::<Vec<_>>()).await {
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        // A worker may report that it waits for another one.
        assert!(!outcome.stderr.contains("failed: "), "{outcome:?}");
    }
    let said = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    let mut done = Vec::new();
    for customer in ["c0", "c1", "c2"] {
        let lines: Vec<&str> = said.lines().filter(|line| line.contains(customer)).collect();
        for turn in lines.chunks(2) {
            let job = turn[0].strip_prefix("begin ").expect("one at a time");
            assert_eq!(turn[1].strip_prefix("end "), Some(job), "{said}");
            done.push(job.to_owned());
        }
    }
    done.sort();
    let mut jobs = jobs;
    jobs.sort();
    assert_eq!(done, jobs);
}
