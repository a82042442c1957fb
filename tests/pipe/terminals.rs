//! What is shown on a terminal meanwhile. The terminal is `script`'s.

use crate::redis_support::Place;
use crate::{sh, succeed};

/// What a line of shell shows at a terminal.
async fn shown(place: &Place, line: &str) -> String {
    sh(place, &format!("script --quiet --return --command {line:?} /dev/null </dev/null")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown_on_a_terminal_that_the_data_is_not_on_unless_unwanted() {
    let place = Place::new().await;
    succeed(&place, "create", &[]).await;
    let put = "(seq 1 1500; sleep 1) | lockkeeper queue put jobs --keep-open";
    let text = shown(&place, put).await;
    assert!(text.contains("1,500 elements, 4.78 KiB, "), "{text:?}");
    assert!(text.ends_with("\x1b[2K"), "it is gone at the end: {text:?}");
    assert_eq!(shown(&place, &format!("{put} --quiet")).await, "");

    let get = "lockkeeper queue get jobs --count 1500 | (cat; sleep 1) >/dev/null";
    let text = shown(&place, get).await;
    assert!(text.contains(" elements, "), "{text:?}");
    let data = "lockkeeper queue get jobs --count 2";
    assert_eq!(shown(&place, data).await, "1\r\n2\r\n", "no line comes between the data");
}
