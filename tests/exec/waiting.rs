//! What is said while a lock is waited for, where there is no terminal.

use crate::commands::{Running, Scratch, WRITE};
use crate::support::rabbitmq::Vhost;
use crate::{LOCK, create, lockkeeper};

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_says_so_once_and_quiet_says_nothing() {
    let vhost = Vhost::create().await;
    create(&vhost, 1).await;
    let scratch = Scratch::new();
    let file = scratch.file("register");
    let arguments = ["exec", LOCK, "--identity", "bob", "--", "sh", "-c", WRITE, &file];
    let mut holding = Running::start(&scratch, "holding", lockkeeper(&vhost, &arguments));
    scratch.next_holder(&[]).await;
    let waiting = lockkeeper(&vhost, &["exec", LOCK, "--", "true"]);
    let mut waiting = Running::start(&scratch, "waiting", waiting);
    let quiet = lockkeeper(&vhost, &["exec", LOCK, "--quiet", "--", "true"]);
    let mut quiet = Running::start(&scratch, "quiet", quiet);
    waiting.until_it_says("waiting for a slot of ci.deploy: 1 of 1 held, 1 by bob since 2").await;
    holding.signal("TERM");
    assert_eq!(holding.code().await, Some(143));
    assert_eq!((waiting.code().await, quiet.code().await), (Some(0), Some(0)));
    let said = waiting.said();
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains("got slot 1 of ci.deploy after "), "{said}");
    assert_eq!((quiet.said(), holding.said()), (String::new(), String::new()));
}
