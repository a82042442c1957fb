//! Completion in a shell: the script asks the program, which asks the API server.

use lockkeeper_api::{PressureQueue, Semaphore};
use lockkeeper_testkit::built;
use lockkeeper_testkit::world::{World, in_a_world};
use tokio::process::Command;

use crate::kubectl::{Ended, ended};

/// Completes the last word of a line in bash, as the key Tab does. Prints a candidate a line.
const TAB: &str = r#"
    set -eu
    source <(lockkeeper completion bash)
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMP_TYPE=9
    # Where bash completes, it is defined. A script has none.
    compopt() { :; }
    _clap_complete_lockkeeper lockkeeper "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    if [ ${#COMPREPLY[@]} != 0 ]; then printf '%s\n' "${COMPREPLY[@]}"; fi
"#;

async fn tab(line: &str) -> Ended {
    let path = std::path::Path::new(built::lockkeeper()).parent().unwrap().display().to_string();
    let mut bash = Command::new("bash");
    bash.args(["-c", TAB, "tab"]).args(line.split(' '));
    bash.env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()));
    ended(&mut bash).await
}

async fn candidates(line: &str) -> Vec<String> {
    let ended = tab(line).await;
    assert_eq!((ended.code, ended.said.as_str()), (Some(0), ""), "{line}");
    ended.out.lines().map(|word| word.trim().to_owned()).collect()
}

async fn objects(world: &World) {
    for name in ["deploy", "migrate"] {
        world.apply::<Semaphore>(name, "{slots: 1}").await.unwrap();
    }
    world.apply::<PressureQueue>("deploys", "{bound: 1}").await.unwrap();
}

#[tokio::test]
async fn a_shell_completes_the_names_of_locks_and_queues() {
    in_a_world("completion", async |world| {
        objects(&world).await;
        let space = &world.namespace;
        for (line, expected) in [
            (format!("exec -n {space} sem/"), &["sem/deploy", "sem/migrate"][..]),
            (format!("exec --namespace={space} sem/d"), &["sem/deploy"]),
            (format!("holders --namespace {space} sem/m"), &["sem/migrate"]),
            (format!("semaphore count -n {space} sem/m"), &["sem/migrate"]),
            (format!("queue get -n {space} pq/"), &["pq/deploys"]),
            (format!("suspend -n {space} sem/deploy pq/"), &["pq/deploys"]),
            (format!("doctor -n {space} --lock sem/d"), &["sem/deploy"]),
            // The options of another program are not ours.
            (format!("exec -n {space} sem/deploy -- kubectl -n {space} sem/"), &[]),
            ("exec --on-l".to_owned(), &["--on-lost"]),
            ("semaphore shri".to_owned(), &["shrink"]),
        ] {
            assert_eq!(candidates(&format!("lockkeeper {line}")).await, expected, "{line}");
        }
    })
    .await;
}

#[tokio::test]
async fn without_an_api_server_a_shell_completes_everything_else_silently() {
    let nowhere = "lockkeeper exec --kubeconfig /nowhere";
    assert_eq!(candidates(&format!("{nowhere} sem/")).await, [""; 0]);
    assert_eq!(candidates(&format!("{nowhere} --no-w")).await, ["--no-wait"]);
    // A part of the program that only the program starts.
    assert!(!candidates("lockkeeper ").await.contains(&"guardian".to_owned()));
}
