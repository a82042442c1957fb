//! The example `queue`, a program that uses the Rust library: beside the command line, and
//! with itself.

use lockkeeper_testkit::built;
use lockkeeper_testkit::redis::TestQueue;
use tokio::io::AsyncWriteExt;

use crate::pipe::{finish, program, queue, succeed};

fn example(place: &TestQueue, role: &str) -> tokio::process::Command {
    let mut command = program(place, &built::example("queue"));
    command.args([role, place.queue.as_str()]);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_pass_through_the_rust_example_and_the_commands_in_every_combination() {
    let lines = (1..=100).map(|number| number.to_string()).collect::<Vec<_>>().join("\n") + "\n";
    for (ours_puts, ours_gets) in [(true, true), (true, false), (false, true)] {
        let place = TestQueue::new().await;
        succeed(&place, "create", &["--bound", "8"]).await;
        let mut putting =
            if ours_puts { example(&place, "put") } else { queue(&place, "put", &[]) };
        let mut putting = putting.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let mut getting =
            if ours_gets { example(&place, "get") } else { queue(&place, "get", &[]) };
        let getting = getting.spawn().unwrap();
        let mut stdin = putting.stdin.take().unwrap();
        stdin.write_all(lines.as_bytes()).await.unwrap();
        drop(stdin);
        // Together: the command takes no more than its reader has read.
        let (put, got) = tokio::join!(finish(putting), finish(getting));
        assert_eq!((put.code, got.code), (Some(0), Some(0)), "{put:?} {got:?}");
        assert_eq!(String::from_utf8(got.stdout).unwrap(), lines);
    }
}
