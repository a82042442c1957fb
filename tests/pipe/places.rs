//! The place that a queue's name means: for dead letters, and in commands
//! that messages print.

use std::process::Stdio;

use lockkeeper_api::PressureQueue;
use lockkeeper_testkit::built;
use lockkeeper_testkit::redis::{TestQueue, eventually};
use lockkeeper_testkit::world::{World, in_a_world, next_database};
use tokio::process::Command;

use crate::pipe::{finish, outcome, shell};

/// A command that is printed works when it is pasted, whatever the names are.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_for_saved_elements_names_their_place_and_is_quoted_for_a_shell() {
    let place = TestQueue::new().await;
    let folder = format!("{}/it's {}", env!("CARGO_TARGET_TMPDIR"), place.queue.prefix());
    std::fs::create_dir(&folder).unwrap();
    let prefix = place.queue.prefix().to_owned();
    let elsewhere = |line: &str| {
        let line = line.replace("WHICH", r#"--prefix "$P" -- "-it's""#);
        let mut command = shell(&place, &line);
        // Not the prefix of the environment.
        command.env("PRESSURE_PREFIX", format!("{prefix}-other")).env("P", &prefix);
        command.current_dir(&folder);
        command
    };
    let filled = "lockkeeper queue create WHICH; seq 4 | lockkeeper queue put --keep-open WHICH";
    assert_eq!(outcome(elsewhere(filled)).await.code, Some(0));
    let list = format!("{prefix}:-it's");
    let length = async || place.run::<u64>(&["LLEN", &list]).await;
    let mut getting = elsewhere("exec lockkeeper queue get --count 3 WHICH").spawn().unwrap();
    eventually("it has taken all it can", async || length().await == 1).await;
    assert_eq!(outcome(elsewhere("lockkeeper queue get --count 1 WHICH")).await.text(), "4\n");
    drop(getting.stdout.take());
    let ended = finish(getting).await;
    assert_eq!(ended.code, Some(141), "{ended:?}");
    assert!(ended.stderr.contains("(with the same REDIS_URL, PRESSURE_PREFIX)"), "{ended:?}");
    let printed = ended.stderr.split("; ").find_map(|part| part.split_once(" puts them"));
    let printed = printed.unwrap_or_else(|| panic!("{ended:?}")).0;
    assert_eq!(outcome(elsewhere(printed)).await.code, Some(0), "{printed}");
    assert_eq!(length().await, 3, "{printed}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Runs a shell line with this server as `REDIS_URL`, and with the world's as `WORLD`.
async fn in_world(world: &World, url: &str, line: &str) -> String {
    let folder = std::path::Path::new(built::lockkeeper()).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command
        .args(["-c", &line.replace("NAMESPACE", &world.namespace)])
        .env("PATH", path)
        .env("REDIS_URL", url)
        .env("WORLD", world.redis_url())
        .stdin(Stdio::null());
    let output = command.output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.status.success(), "{line}: {}", text(output.stderr));
    text(output.stdout)
}

/// A plain name for dead letters is a queue next to the resource's, not one of `REDIS_URL`.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_stay_on_the_server_and_under_the_prefix_of_the_resource() {
    in_a_world("letters", async |world| {
        let here = world.redis_url();
        let elsewhere = format!("{}/{}", here.rsplit_once('/').unwrap().0, next_database());
        let more = "{redisReference: {connectionSecret: {name: redis}, prefix: p}, queueName: jobs}";
        world.apply::<PressureQueue>("jobs", more).await.unwrap();
        let prepared = r#"set -e
            for name in jobs failed; do lockkeeper queue create $name --url "$WORLD" --prefix p; done
            lockkeeper queue create failed --prefix p; lockkeeper queue create failed
            lockkeeper queue create jobs --prefix p
            echo poison | lockkeeper queue put jobs --url "$WORLD" --prefix p"#;
        in_world(&world, &elsewhere, prepared).await;
        // Also with options that are for pq/NAME. `jobs` elsewhere is another queue.
        let ran = "lockkeeper queue run pq/jobs -n NAMESPACE --attempts 1 --dead-letter failed -- false || exit $(($? == 85 ? 0 : $?))";
        in_world(&world, &elsewhere, ran).await;
        let lengths = r#"lockkeeper queue length failed --url "$WORLD" --prefix p
            lockkeeper queue length failed --prefix p; lockkeeper queue length failed"#;
        assert_eq!(in_world(&world, &elsewhere, lengths).await, "1\n0\n0\n");
        // Its own queue stays rejected, by whatever name.
        let same = r"for name in jobs pq/jobs; do
            lockkeeper queue run pq/jobs -n NAMESPACE --attempts 1 --dead-letter $name -- false; echo $?
            done";
        let codes = in_world(&world, &elsewhere, same).await;
        assert_eq!(codes, "64\n64\n");
        let cleared = r"lockkeeper queue delete failed; lockkeeper queue delete failed --prefix p
            lockkeeper queue delete jobs --prefix p";
        in_world(&world, &elsewhere, cleared).await;
    })
    .await;
}
