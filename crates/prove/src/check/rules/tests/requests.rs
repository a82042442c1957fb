//! Stories of rules about single requests.

use super::*;

const A: [&str; 3] = ["durable", "x-max-length=0", "x-queue-type=classic"];

/// Returns a story that violates each rule about requests.
pub fn wrong() -> Vec<Story> {
    vec![
        declared(queue(), 1, "N-1-B", &["exclusive"]),
        published(queue(), 1, "N-W", true),
        published(queue(), 1, "N-1-A", true),
        declared(queue(), 1, "N-1-B", &["exclusive", "x-lockkeeper-url=501 bytes"]),
        queue().ask(1, Verb::Acquire).own(1, "N-2-B"),
        consumer().own(1, "N-1-B"),
        declared(consumer(), 1, "N-1-C", &["durable", "x-queue-type=quorum"]),
    ]
}

#[test]
fn queues_are_declared_with_the_options_of_the_table() {
    let of = |rules, queue: &str, options: &[&str]| {
        broken(declared(Story::new(rules, 1), 1, queue, options))
    };
    let guideline = |queue: &str, options: &[&str]| of(Rules::ExclusiveQueue, queue, options);
    let python = |queue: &str, options: &[&str]| of(Rules::AmqpLocksPython, queue, options);
    let record = ["durable", "x-max-length=1", "x-overflow=reject-publish", "x-queue-type=classic"];
    assert_eq!(guideline("N-1-A", &A), NONE);
    assert_eq!(guideline("N-1-A", &["durable"]), NONE);
    assert_eq!(guideline("N-1-A", &["x-max-length=0"]), ["PS-1"]);
    assert_eq!(python("N-A-1", &["x-max-length=0"]), NONE);
    assert_eq!(python("N-A-1", &A), ["PS-1"]);
    assert_eq!(guideline("N-1-B", &["exclusive", "x-max-length=0"]), NONE);
    assert_eq!(guideline("N-1-B", &["exclusive", "durable", "x-max-length=0"]), ["PS-1"]);
    assert_eq!(guideline("N-1-B", &["x-max-length=0"]), ["PS-1"]);
    assert_eq!(python("N-B-1", &["exclusive", "x-max-length=0"]), NONE);
    assert_eq!(guideline("N-1-F", &record), NONE);
    assert_eq!(guideline("N-1-F", &["durable", "x-queue-type=classic"]), ["PS-1"]);
    assert_eq!(guideline("N-W", &["durable", "x-queue-type=classic"]), NONE);
    assert_eq!(guideline("N-W", &A), ["PS-1"]);
    assert_eq!(guideline("N", &["exclusive"]), NONE);
    assert_eq!(guideline("N", &["durable"]), ["PS-1"]);
    assert_eq!(guideline("other", &["auto-delete"]), NONE);
    assert_eq!(of(Rules::Token, "N-5-B", &["exclusive"]), NONE);
}

#[test]
fn a_queue_whose_options_were_not_recorded_is_not_judged() {
    assert_eq!(broken(queue().ask(1, Verb::Acquire).own(1, "N-1-B")), NONE);
}

#[test]
fn a_holder_fact_has_a_maximum_length() {
    let fact = ["exclusive", "x-lockkeeper-url=501 bytes", "x-max-length=0"];
    assert_eq!(broken(declared(queue(), 1, "N-1-B", &fact)), ["PS-13"]);
    let consume = sent(consumer(), 1, "basic.consume", |frame| {
        "N-1-C".clone_into(&mut frame.queue);
        frame.options = Some(vec!["x-lockkeeper-url=501 bytes".to_owned()]);
    });
    assert_eq!(broken(consume), ["PS-13"]);
    let short = ["exclusive", "x-max-length=0"];
    assert_eq!(broken(declared(queue(), 1, "N-1-B", &short)), NONE);
}

#[test]
fn the_wait_queue_is_not_probed() {
    assert_eq!(broken(published(queue(), 1, "N-W", true)), ["PS-5"]);
    // A wake-up.
    assert_eq!(broken(published(queue(), 1, "N-W", false)), NONE);
}

#[test]
fn a_probe_requires_publisher_confirms_or_a_transaction() {
    let confirmed = |story: Story| story.call(1, "confirm.select", "");
    let probe = |story: Story| published(story, 1, "N-1-A", true);
    assert_eq!(broken(probe(queue())), ["PS-23"]);
    assert_eq!(broken(probe(confirmed(queue()))), NONE);
    let reopened = confirmed(queue()).rejected(1, "queue.declare(passive)", "N-1-A", 404);
    assert_eq!(broken(probe(reopened.call(1, "channel.open", ""))), ["PS-23"]);
    let transaction = || queue().call(1, "tx.select", "");
    assert_eq!(broken(probe(transaction()).call(1, "tx.commit", "")), NONE);
    assert_eq!(broken(probe(transaction().call(1, "channel.open", ""))), ["PS-23"]);
    // An order to the holder.
    assert_eq!(broken(published(consumer(), 1, "N-1-C", true)), NONE);
    let administrator = probe(queue().resize(1, 2)).ok(1, Verb::Resize);
    assert_eq!(broken(administrator), NONE);
}

#[test]
fn a_slot_that_never_existed_is_checked_before_its_holder_is_declared() {
    let story = || queue().ask(1, Verb::Acquire);
    assert_eq!(broken(story().own(1, "N-2-B")), ["PS-9"]);
    let asked = story().request(1, "queue.declare(passive)", "N-2-A").own(1, "N-2-B");
    assert_eq!(broken(asked), NONE);
    assert_eq!(broken(story().own(1, "N-1-B")), NONE);
    let grown = story().own(9, "N").call(9, "queue.declare", "N-2-A").own(1, "N-2-B");
    assert_eq!(broken(grown), NONE);
    // Another connection may have asked.
    assert_eq!(broken(queue().own(1, "N-2-B")), NONE);
}

#[test]
fn all_clients_use_the_same_protocol() {
    assert_eq!(broken(consumer().own(1, "N-1-B")), ["EC-1"]);
    assert_eq!(broken(queue().consume(1, "N-1-C")), ["EC-1"]);
    assert_eq!(broken(consumer().consume(1, "N-1-C")), NONE);
    assert_eq!(broken(queue().own(1, "N-1-B")), NONE);
}

#[test]
fn the_queue_of_a_consumer_is_a_classic_queue() {
    let declared = |options: &[&str]| broken(declared(consumer(), 1, "N-1-C", options));
    assert_eq!(declared(&["durable", "x-queue-type=quorum"]), ["EC-2"]);
    assert_eq!(declared(&A), NONE);
}

#[test]
fn an_administrator_is_named_as_the_cause_of_its_requests() {
    let declare = |story: Story| declared(story, 1, "N-1-A", &["auto-delete"]);
    let causes = |story: Story| -> Vec<_> {
        let violations = story.verdict().violations.into_iter();
        let rules = violations.filter(|one| one.property == Property::Rule);
        rules.map(|one| one.cause.to_string()).collect()
    };
    assert_eq!(causes(declare(queue().resize(1, 2)).ok(1, Verb::Resize)), ["ADMINISTRATOR"]);
    assert_eq!(causes(declare(queue().own(1, "N"))), ["ADMINISTRATOR"]);
    assert_eq!(causes(declare(queue())), ["CLIENT"]);
}

#[test]
fn a_rule_is_reported_once_for_each_process() {
    let bad = |story, process| declared(story, process, "N-1-B", &["exclusive"]);
    assert_eq!(broken(bad(bad(bad(queue(), 1), 1), 2)), ["PS-1", "PS-1"]);
}
