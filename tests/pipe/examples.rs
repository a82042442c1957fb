//! The pipeline of examples/, with standard programs in place of the user's programs.

use serde::Deserialize;
use serde_json::Value;
use tokio::process::Child;

use crate::pipe::redis_support::{Place, eventually};
use crate::pipe::{content, end, fill, finish, seq, shell, succeed};

/// Returns the script of each Job, with these two programs for listing and for
/// processing.
fn scripts(list: &str, work: &str) -> [String; 2] {
    let file = format!("{}/examples/pressure-queue/pipeline.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).unwrap();
    let script = |document: serde_yaml::Deserializer| {
        let object = Value::deserialize(document).unwrap();
        let arguments = object.pointer("/spec/template/spec/containers/0/args")?.as_array()?;
        let words: Vec<&str> = arguments.iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(words[..4], ["bash", "-euo", "pipefail", "-c"]);
        let script = words[4].replace("/usr/local/bin/list-work", list);
        Some("set -euo pipefail\n".to_owned() + &script.replace("/usr/local/bin/do-work", work))
    };
    let scripts: Vec<String> =
        serde_yaml::Deserializer::from_str(&text).filter_map(script).collect();
    scripts.try_into().expect("two Jobs")
}

fn start(place: &Place, script: &str) -> Child {
    shell(place, script).env("QUEUE", place.queue.as_str()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pipeline_of_the_examples_does_all_its_work_and_leaves_no_queue() {
    let place = Place::new().await;
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
    let place = Place::new().await;
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
