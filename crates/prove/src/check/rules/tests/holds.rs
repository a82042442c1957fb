//! Stories of rules about holds.

use super::*;

/// Returns a story that violates each rule about holds.
pub fn wrong() -> Vec<Story> {
    let cut = |story: Story| story.connection(1, ConnectionState::Cut);
    vec![
        published(queue().acquires(1), 1, "N-1-A", false),
        published(consumer().consume(1, "N-1-C"), 1, "N-1-A", false),
        published(tokens().get(1, 1, "1").call(1, "queue.declare(passive)", "N"), 1, "x", false),
        again(cut(queue().acquires(1)), "queue.declare", "N-1-B"),
        again(cut(gets(tokens())), "basic.get", "N.semaphore"),
        abandons(1, None).ask(1, Verb::Acquire).full(1),
        started(&[]),
        granted(false),
    ]
}

/// Adds a request on another connection that takes a slot or token.
fn again(story: Story, method: &str, queue: &str) -> Story {
    sent(story, 1, method, |frame| {
        queue.clone_into(&mut frame.queue);
        (frame.connection, frame.exclusive) = (2, true);
    })
}

fn gets(story: Story) -> Story {
    story.ask(1, Verb::Acquire).get(1, 1, "1").ok(1, Verb::Acquire)
}

#[test]
fn the_connection_that_holds_does_not_publish() {
    let publish = |story, connection| broken(published(story, connection, "N-1-A", false));
    assert_eq!(publish(queue().acquires(1), 1), ["PS-6"]);
    assert_eq!(publish(queue().acquires(1), 2), NONE);
    assert_eq!(publish(queue(), 1), NONE);
    assert_eq!(publish(queue().acquires(1).releases(1), 1), NONE);
    let releasing = queue().acquires(1).request(1, "queue.delete", "N-1-B");
    let woken = published(releasing, 1, "N-W", false).answer(1, "queue.delete-ok");
    assert_eq!(broken(woken), NONE);
    assert_eq!(publish(queue().own(1, "N"), 1), NONE);
    assert_eq!(publish(consumer().consume(1, "N-1-C"), 1), ["EC-4"]);
    assert_eq!(publish(consumer().consume(1, "N-1-C"), 2), NONE);
}

#[test]
fn the_connection_with_a_token_does_not_publish() {
    let publish = |story, connection| broken(published(story, connection, "other", false));
    let used = || tokens().get(1, 1, "1").call(1, "queue.declare(passive)", "N.semaphore");
    assert_eq!(publish(used(), 1), ["TK-4"]);
    assert_eq!(publish(used(), 2), NONE);
    // The client may not have read the delivery yet.
    assert_eq!(publish(tokens().get(1, 1, "1"), 1), NONE);
    let returned = sent(used(), 1, "basic.reject", |frame| {
        (frame.delivery, frame.requeue) = (Some(1), true);
    });
    assert_eq!(publish(returned, 1), NONE);
    // An administrator that removes tokens does not hold.
    let shrink = tokens().resize(1, 0).get(1, 1, "1");
    let shrink = shrink.call(1, "queue.declare(passive)", "N.semaphore");
    assert_eq!(publish(shrink.ok(1, Verb::Resize), 1), NONE);
}

#[test]
fn a_lost_slot_is_not_taken_again_on_another_connection() {
    let cut = || queue().acquires(1).connection(1, ConnectionState::Cut);
    let declare = |story| broken(again(story, "queue.declare", "N-1-B"));
    assert_eq!(declare(cut()), ["PS-8"]);
    assert_eq!(declare(cut().ask(1, Verb::Verify)), ["PS-8"]);
    assert_eq!(declare(cut().ask(1, Verb::Acquire)), NONE);
    // The client may continue an attempt whose result is unknown.
    assert_eq!(declare(cut().ask(1, Verb::Acquire).full(1)), NONE);
    assert_eq!(declare(cut().ask(1, Verb::Release)), NONE);
    assert_eq!(declare(queue().acquires(1)), NONE);
    let earlier = again(queue().acquires(1), "queue.declare", "N-1-B");
    assert_eq!(broken(earlier.connection(1, ConnectionState::Cut)), NONE);
    let attempt = queue().ask(1, Verb::Acquire).own(1, "N-1-B");
    let retried = attempt.connection(1, ConnectionState::Cut);
    assert_eq!(declare(retried), NONE);
    let consumes = consumer().ask(1, Verb::Acquire).consume(1, "N-1-C");
    let consumes = consumes.call(1, "queue.declare", "N-1-C").granted(1, 1);
    let cut = consumes.connection(1, ConnectionState::ClosedByBroker);
    assert_eq!(broken(again(cut, "basic.consume", "N-1-C")), ["PS-8"]);
}

#[test]
fn a_lost_token_is_not_taken_again_on_another_connection() {
    let get = |story| broken(again(story, "basic.get", "N.semaphore"));
    let cut = || gets(tokens()).connection(1, ConnectionState::Cut);
    assert_eq!(get(cut()), ["TK-5"]);
    assert_eq!(get(cut().ask(1, Verb::Acquire)), NONE);
    assert_eq!(get(gets(tokens())), NONE);
}

/// Returns an attempt that declares B of slot 1, fails, and does this.
fn abandons(slots: u32, then: Option<&str>) -> Story {
    let story = Story::new(Rules::ExclusiveQueue, slots).ask(1, Verb::Acquire);
    let story = story.own(1, "N-1-B").full(1);
    match then {
        Some("close") => story.connection(1, ConnectionState::ClosedByClient),
        Some(method) => story.call(1, method, "N-1-B"),
        None => story,
    }
}

#[test]
fn an_abandoned_attempt_leaves_nothing() {
    let next = |story: Story| broken(story.ask(1, Verb::Acquire).full(1));
    assert_eq!(next(abandons(1, None)), ["PS-10"]);
    assert_eq!(next(abandons(1, Some("queue.delete"))), NONE);
    assert_eq!(next(abandons(1, Some("close"))), NONE);
    // It may still be on the way.
    assert_eq!(broken(abandons(1, None)), NONE);
    let used = abandons(1, None).ask(1, Verb::Acquire).granted(1, 1);
    assert_eq!(broken(used), ["PS-10"]);
    let other = abandons(2, None).ask(1, Verb::Acquire).own(1, "N-2-B").granted(1, 2);
    assert_eq!(broken(other), ["PS-10"]);
}

/// Returns a holder whose client has these capabilities.
fn started(capabilities: &[&str]) -> Story {
    let start = sent(consumer(), 1, "connection.start-ok", |frame| {
        frame.options = Some(capabilities.iter().map(|&one| one.to_owned()).collect());
    });
    start.consume(1, "N-1-C")
}

#[test]
fn a_holder_that_consumes_supports_cancel_notifications() {
    assert_eq!(broken(started(&["basic.nack"])), ["EC-5"]);
    assert_eq!(broken(started(&["basic.nack", "consumer_cancel_notify"])), NONE);
    // The handshake was not recorded.
    assert_eq!(broken(consumer().consume(1, "N-1-C")), NONE);
}

/// Returns a grant by a consume, with or without a check of the type.
fn granted(checked: bool) -> Story {
    let story = consumer().ask(1, Verb::Acquire).consume(1, "N-1-C");
    let story = if checked { story.call(1, "queue.declare", "N-1-C") } else { story };
    story.call(1, "queue.declare(passive)", "N-1-A").granted(1, 1)
}

#[test]
fn the_type_of_a_queue_is_checked_before_the_slot_counts_as_held() {
    assert_eq!(broken(granted(false)), ["EC-3"]);
    assert_eq!(broken(granted(true)), NONE);
    let later =
        granted(true).ask(1, Verb::Release).call(1, "basic.cancel", "").ok(1, Verb::Release);
    let later = later.ask(1, Verb::Acquire).consume(1, "N-1-C").granted(1, 1);
    assert_eq!(broken(later), NONE);
}
