//! Progress on a terminal. `script` provides the terminal.

use lockkeeper_testkit::redis::TestQueue;

use crate::pipe::{fill, sh, succeed};

/// Returns the terminal output of a shell line. While it runs, the output is in the file
/// `$SHOWN`.
async fn shown(place: &TestQueue, line: &str) -> String {
    let file = format!("{}/shown-{}", env!("CARGO_TARGET_TMPDIR"), place.queue.prefix());
    let script = "script --quiet --return --flush --command";
    // Without TERM, no progress is drawn.
    let line = format!("export SHOWN={file:?} TERM=xterm; {script} '{line}' \"$SHOWN\" </dev/null");
    let text = sh(place, &line).await;
    std::fs::remove_file(file).unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown_on_a_terminal_that_the_data_is_not_on_unless_unwanted() {
    let place = TestQueue::new().await;
    succeed(&place, "create", &[]).await;
    let until = |text: &str| format!("until grep -q \"{text}\" \"$SHOWN\"; do sleep 0.1; done");
    let put = "lockkeeper queue put jobs --keep-open";
    let line = format!("(seq 1 1500; {}) | {put}", until("1,500 elements, 4.78 KiB, "));
    let text = shown(&place, &line).await;
    assert!(text.ends_with("\x1b[2K"), "it is gone at the end: {text:?}");
    assert_eq!(shown(&place, &format!("(seq 1 1500; sleep 1) | {put} --quiet")).await, "");

    let last = format!("echo last | {put} --quiet");
    let line = format!(
        "lockkeeper queue get jobs --count 3001 | ({}; {last}; cat) >/dev/null",
        until("3,000 elements, ")
    );
    let text = shown(&place, &line).await;
    assert!(text.ends_with("\x1b[2K"), "it is gone at the end: {text:?}");
    fill(&place, b"1\n2\n").await;
    let data = "lockkeeper queue get jobs --count 2";
    assert_eq!(shown(&place, data).await, "1\r\n2\r\n", "no line comes between the data");
}
