//! Interoperability with clients that are written as in the RabbitMQ blog.

use std::time::Duration;

use lockkeeper_plan::semaphore::DesiredSlots;
use lockkeeper_semaphore::{ResizeTo, Verdict};
use lockkeeper_testkit::blog::{self, BlogClient};
use lockkeeper_testkit::rabbitmq::{Vhost, eventually};
use tokio_util::sync::CancellationToken;

use super::{classic, consumers, create, free, lock, waiting, with_priority};
use crate::client::{any, broker};

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_that_the_blog_made_is_used_and_administered_by_us() {
    let vhost = Vhost::create().await;
    blog::set_up(&vhost, "ci.deploy", 2).await;
    let mut theirs = BlogClient::start(&vhost, "ci.deploy", None).await;
    let token = theirs.next().await;
    let ours = lock(&vhost).try_acquire(&any()).await.unwrap();
    // Their tokens have no ids, so fencing is not possible.
    assert_eq!((ours.token_id(), ours.fence()), (None, None));
    assert_eq!(ours.verify().await, Ok(Verdict::Held));
    let administrator = broker(&vhost);
    let (desired, cancel) = (DesiredSlots::new(0), CancellationToken::new());
    let grown =
        administrator.resize(&classic(), ResizeTo::Grow(1), desired, &cancel).await.unwrap();
    assert_eq!((grown.before, grown.after), (2, 3));
    let third = lock(&vhost).try_acquire(&any()).await.unwrap();
    assert!(third.token_id().is_some());
    third.release().await.unwrap();
    let shrunk = administrator.resize(&classic(), ResizeTo::Shrink(2), desired, &cancel).await;
    assert_eq!(shrunk.unwrap().done.left, 1);
    // Until the drain consumes as well, the released token would return to them.
    eventually("it drains", async || consumers(&vhost).await == 2).await;
    // The first released token is drained, here theirs.
    blog::stop_processing(&token).await;
    eventually("one is left", async || {
        administrator.observe(&classic(), 0, 0).await.unwrap().total() == 1
    })
    .await;
    assert!(theirs.gets_one_within(Duration::from_millis(200)).await.is_none());
    ours.release().await.unwrap();
    theirs.next().await;
}

/// As pythonishvili/rabbit-semaphore publishes them.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_are_all_1_have_no_id_and_each_holder_is_shown() {
    let vhost = Vhost::create().await;
    blog::set_up_with(&vhost, "ci.deploy", 2, b"1").await;
    let one = lock(&vhost).try_acquire(&any().with_identity("one")).await.unwrap();
    let two = lock(&vhost).try_acquire(&any().with_identity("two")).await.unwrap();
    assert_eq!((one.token_id(), two.token_id()), (None, None));
    let administrator = broker(&vhost);
    eventually("both are shown", async || {
        let seen = administrator.observe(&classic(), 0, 0).await.unwrap();
        let holders = administrator.holders(&classic(), &seen, 2, 9).await.list;
        let mut names: Vec<_> = holders.into_iter().filter_map(|one| one.identity).collect();
        names.sort();
        names == ["one", "two"]
    })
    .await;
    one.release().await.unwrap();
    assert_eq!(two.verify().await, Ok(Verdict::Held));
    two.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_that_we_made_is_used_by_the_blogs_clients() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 1).await;
    // It finds the queue and adds nothing.
    blog::set_up(&vhost, "ci.deploy", 1).await;
    let mut theirs = BlogClient::start(&vhost, "ci.deploy", Some(3)).await;
    let token = theirs.next().await;
    lock(&vhost).try_acquire(&any()).await.unwrap_err();
    let task = waiting(&vhost, &classic(), any()).await;
    // The unclean way: the channel is closed.
    theirs.channel.close(200, "OK".into()).await.unwrap();
    let ours = task.await.unwrap().unwrap();
    assert_eq!(ours.token_id().unwrap().to_string().as_bytes(), token.data);
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_starves_where_both_want_it_all_the_time() {
    let vhost = Vhost::create().await;
    blog::set_up(&vhost, "ci.deploy", 1).await;
    let mut theirs = BlogClient::start(&vhost, "ci.deploy", None).await;
    let lock = lock(&vhost);
    let ours = async {
        let mut times = 0;
        while times < 20 {
            let permit = lock.acquire(&any()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            permit.release().await.unwrap();
            times += 1;
        }
    };
    let theirs = async {
        for _ in 0..20 {
            let token = theirs.next().await;
            tokio::time::sleep(Duration::from_millis(2)).await;
            blog::stop_processing(&token).await;
        }
        // It would keep alternating with the remaining clients.
        drop(theirs);
    };
    let both = futures::future::join(ours, theirs);
    tokio::time::timeout(Duration::from_secs(15), both).await.expect("neither starves");
    eventually("it is free again", async || free(&vhost).await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn priorities_order_both() {
    let vhost = Vhost::create().await;
    create(&vhost, &classic(), 1).await;
    let held = lock(&vhost).try_acquire(&any()).await.unwrap();
    let mut low = BlogClient::start(&vhost, "ci.deploy", None).await;
    let mut high = BlogClient::start(&vhost, "ci.deploy", Some(9)).await;
    let middle = waiting(&vhost, &classic(), with_priority(5)).await;
    let highest = waiting(&vhost, &classic(), with_priority(200)).await;
    assert_eq!(consumers(&vhost).await, 4);
    held.release().await.unwrap();
    highest.await.unwrap().unwrap().release().await.unwrap();
    let token = high.next().await;
    assert!(!middle.is_finished());
    // After its release it would be the first again.
    drop((token, high));
    middle.await.unwrap().unwrap().release().await.unwrap();
    low.next().await;
}
