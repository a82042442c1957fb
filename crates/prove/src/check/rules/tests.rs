//! Tests that the registry covers the documents, and that each check distinguishes a violation
//! from its correct counterpart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::registry::DOCUMENTS;
use super::{Judged, all};
use crate::check::tests::Story;
use crate::check::verdict::Property;
use crate::history::{ConnectionState, Frame, Rules, Sender, Verb};

mod holds;
mod requests;

/// Occurrences of *must* that are no rules for clients or administrators. In these texts, `must`
/// occurs once, and each occurs once in the document.
const NO_RULES: [(&str, &str); 18] = [
    // The meaning of the word.
    ("persistent-semaphore.md", "*Must*, *should* and *may* are used"),
    ("mutex.md", "*Must*, *should* and *may* are used"),
    // The name of a lock, which its owner chooses.
    ("persistent-semaphore.md", "It must not end in `-<n>-A`"),
    ("mutex.md", "So a mutex must not have the name of a semaphore"),
    // About queues of another protocol, which the tested locks do not have.
    ("persistent-semaphore.md", "The client must then not acquire."),
    ("exclusive-consumer.md", "must not acquire it,"),
    ("exclusive-consumer.md", "and an administrator must not create"),
    // A limit of AMQP: a larger declare cannot be sent.
    ("persistent-semaphore.md", "All arguments of a declare must fit into one frame"),
    // The guarded resource.
    ("token.md", "The guarded resource must store the greatest number"),
    ("token.md", "or there must be only one token"),
    // Here it means "needs to".
    ("token.md", "and no client must be woken"),
    // Headings, and links to them.
    ("persistent-semaphore.md", "## What a driver must support"),
    ("exclusive-consumer.md", "## What a driver must support"),
    ("exclusive-consumer.md", "#what-a-driver-must-support"),
    ("token.md", "## What a driver must support"),
    ("token.md", "#what-a-driver-must-support"),
    ("mutex.md", "## What a driver must support"),
    ("mutex.md", "#what-a-driver-must-support"),
];

/// Returns the text of a document with single spaces.
fn document(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocols");
    let text = fs::read_to_string(directory.join(name)).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the offsets of the word *must*, in any case.
fn musts(text: &str) -> Vec<usize> {
    let lower = text.to_ascii_lowercase();
    let letter = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    let found = lower.match_indices("must").map(|(at, _)| at);
    let whole = |at: &usize| {
        !letter(lower[..*at].chars().next_back()) && !letter(lower[at + 4..].chars().next())
    };
    found.filter(whole).collect()
}

/// Returns the texts in the document that are expected to contain a *must*.
fn quotes(name: &str) -> Vec<&'static str> {
    let rules = all().filter(|rule| rule.document == name).map(|rule| rule.quote);
    let others = NO_RULES.into_iter().filter(|&(document, _)| document == name);
    rules.chain(others.map(|(_, quote)| quote)).collect()
}

#[test]
fn every_must_of_the_documents_is_covered_once() {
    for (name, _) in DOCUMENTS {
        let text = document(name);
        let mut covered = BTreeMap::new();
        for quote in quotes(name) {
            let found: Vec<usize> = text.match_indices(quote).map(|(at, _)| at).collect();
            let [at] = found[..] else {
                panic!("{name} contains this {} times: {quote}", found.len())
            };
            let [must] = musts(quote)[..] else { panic!("not one must: {quote}") };
            let before = covered.insert(at + must, quote);
            assert_eq!(before, None, "{name}: covered twice by {quote}");
        }
        for must in musts(&text) {
            let context: String = text[must..].chars().take(60).collect();
            assert!(covered.contains_key(&must), "{name} has no rule for: {context}");
        }
    }
}

#[test]
fn ids_are_numbered_in_the_order_of_the_text() {
    for (name, prefix) in DOCUMENTS {
        let text = document(name);
        let mut rules: Vec<_> = all().filter(|rule| rule.document == name).collect();
        rules.sort_by_key(|rule| text.find(rule.quote));
        for (number, rule) in (1..).zip(rules) {
            assert_eq!(rule.id, format!("{prefix}-{number}"), "{}", rule.quote);
        }
    }
}

/// Each rule that is checked is violated by a story in `requests` or `holds`.
#[test]
fn every_checked_rule_has_a_story_that_violates_it() {
    let checked: BTreeSet<&str> =
        all().filter(|rule| rule.judged == Judged::Rule).map(|rule| rule.id).collect();
    let stories = requests::wrong().into_iter().chain(holds::wrong());
    let violated: Vec<String> = stories.flat_map(broken).collect();
    assert_eq!(violated.iter().map(String::as_str).collect::<BTreeSet<_>>(), checked);
}

/// Returns the ids of the rules that a story violates.
fn broken(story: Story) -> Vec<String> {
    let violations = story.verdict().violations;
    let rules = violations.into_iter().filter(|one| one.property == Property::Rule);
    rules
        .map(|one| {
            let id = one.rule.unwrap();
            assert!(one.what.starts_with(&format!("{id}: ")), "{}", one.what);
            id
        })
        .collect()
}

const NONE: [&str; 0] = [];

fn queue() -> Story {
    Story::new(Rules::ExclusiveQueue, 1)
}

fn consumer() -> Story {
    Story::new(Rules::ExclusiveConsumer, 1)
}

fn tokens() -> Story {
    Story::new(Rules::Token, 1)
}

/// Adds a method of a client.
fn sent(story: Story, process: u32, method: &str, with: impl FnOnce(&mut Frame)) -> Story {
    story.frame(Sender::Client, process, method, with)
}

/// Adds a declare with these options.
fn declared(story: Story, process: u32, queue: &str, options: &[&str]) -> Story {
    let story = sent(story, process, "queue.declare", |frame| {
        queue.clone_into(&mut frame.queue);
        frame.exclusive = options.contains(&"exclusive");
        let others = options.iter().filter(|&&one| one != "exclusive");
        frame.options = Some(others.map(|&one| one.to_owned()).collect());
    });
    story.answer(process, "queue.declare-ok")
}

/// Adds a publish on this connection.
fn published(story: Story, connection: u32, queue: &str, mandatory: bool) -> Story {
    sent(story, 1, "basic.publish", |frame| {
        queue.clone_into(&mut frame.queue);
        (frame.connection, frame.flag) = (connection, mandatory);
    })
}
