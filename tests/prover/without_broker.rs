//! Implementations of any other lock are judged by their answers: `flock`, and one that looks
//! before it takes. And a driver that is of no use.

use super::{passes, prove, text};

/// The options of a run of a command that is no client of a broker.
const RUN: [&str; 8] = ["run", "--protocol", "None", "--for", "4", "--slots", "1", "--exec"];

#[tokio::test(flavor = "multi_thread")]
async fn flock_has_no_violation() {
    let folder = tempfile::tempdir().unwrap();
    let flock = format!("flock -w {{wait}} -E 75 '{}'/{{lock}} {{work}}", folder.path().display());
    passes(&prove(None, &[&RUN[..], &[&flock]].concat()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_while_a_situation_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let flock = format!("flock -w {{wait}} -E 75 '{}'/{{lock}} {{work}}", folder.path().display());
    // One client never waits for another one.
    let options = [&flock, "--no-faults", "--clients", "1", "--at-most", "7"];
    let played = prove(None, &[&RUN[..], &options].concat()).await;
    passes(&played);
    let text = text(&played);
    assert!(text.contains(", 7 s, seed"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_looks_before_it_takes_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("racy");
    let lines = "#!/bin/sh\nfile=$1; shift\n[ ! -e \"$file\" ] || exit 75\ntouch \"$file\"\n\"$@\"\nrm -f \"$file\"\n";
    std::fs::write(&script, lines).unwrap();
    let racy = format!("sh '{}' '{}'/{{lock}} {{work}}", script.display(), folder.path().display());
    let out = folder.path().join("out");
    let options = [&racy, "--no-faults", "--out", out.to_str().unwrap(), "--at-most", "300"];
    let played = prove(None, &[&RUN[..], &options].concat()).await;
    let text = text(&played);
    assert_eq!(played.status.code(), Some(1), "{text}");
    assert!(text.contains("S2 UNKNOWN"), "{text}");
    assert!(!text.contains(", 300 s, seed"), "nothing was to be waited for: {text}");
    let picture = std::fs::read_to_string(out.join("violation-S2-1.svg")).unwrap();
    assert!(picture.contains("overlap"), "{picture}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_does_not_answer_is_reported_with_its_words() {
    let run =
        ["run", "--protocol", "None", "--for", "2", "--driver", "sh -c 'echo who >&2; exit 3'"];
    let played = prove(None, &run).await;
    let text = text(&played);
    assert_eq!(played.status.code(), Some(2), "{text}");
    assert!(text.contains("ended with exit code 3; its stderr ends with: who"), "{text}");
}
