//! The list of all *must* rules of docs/protocols. See the parent module for the checks.

use super::{Judged, Rule};
use crate::check::verdict::Property;

/// The documents, with the prefix of the ids of their rules.
#[cfg(test)]
pub(super) const DOCUMENTS: [(&str, &str); 4] =
    [(SEMAPHORE, "PS"), (CONSUMER, "EC"), (TOKEN, "TK"), (MUTEX, "MX")];

const SEMAPHORE: &str = "persistent-semaphore.md";
const CONSUMER: &str = "exclusive-consumer.md";
const TOKEN: &str = "token.md";
const MUTEX: &str = "mutex.md";

const INSIDE: Judged = Judged::NotObservable("it happens inside the client");
const SILENCE: Judged = Judged::NotObservable("silent networks are not judged");
const DELAY: Judged = Judged::NotObservable("the tested locks have no lock delay");
const WORK: Judged = Judged::NotObservable("the guarded work is not observed");
const API: Judged = Judged::NotObservable("the management API is not observed");
const MUTEXES: Judged = Judged::NotObservable("true mutexes are not tested");

/// Returns all rules, by document and in the order of its text.
pub fn all() -> impl Iterator<Item = Rule> {
    let documents = [
        (SEMAPHORE, &PERSISTENT_SEMAPHORE[..]),
        (CONSUMER, &EXCLUSIVE_CONSUMER[..]),
        (TOKEN, &TOKENS[..]),
        (MUTEX, &TRUE_MUTEX[..]),
    ];
    documents.into_iter().flat_map(|(document, rules)| {
        rules.iter().map(move |&(id, quote, judged)| Rule { id, document, quote, judged })
    })
}

type Row = (&'static str, &'static str, Judged);

const PERSISTENT_SEMAPHORE: [Row; 26] = [
    ("PS-1", "Queues must be declared with exactly these options.", Judged::Rule),
    ("PS-2", "A client must not decide before the publish is confirmed", INSIDE),
    ("PS-3", "must not rely on its library to match returns to probes", INSIDE),
    (
        "PS-4",
        "Administrators must rule it out before they change anything",
        Judged::NotObservable("the tested broker has one node"),
    ),
    ("PS-5", "`N-W` must never be probed by publishing", Judged::Rule),
    ("PS-6", "The connection that holds must not publish.", Judged::Rule),
    (
        "PS-7",
        "Heartbeats must be enabled and short.",
        Judged::NotObservable("drivers without heartbeats are permitted"),
    ),
    ("PS-8", "The library must not reconnect automatically", Judged::Rule),
    ("PS-9", "It must then also check A[i] before step 3", Judged::Rule),
    ("PS-10", "B[i] must not remain", Judged::Rule),
    ("PS-11", "The holder must treat the slot as lost at that time", SILENCE),
    (
        "PS-12",
        "It must treat the slot as lost immediately when the connection ends",
        Judged::Property(Property::S5),
    ),
    ("PS-13", "Each must have at most 500 bytes", Judged::Rule),
    (
        "PS-14",
        "A client must ignore unknown fields.",
        Judged::NotObservable("the tested locks have no records"),
    ),
    ("PS-15", "It must rest before it reports", DELAY),
    ("PS-16", "Then it must replace the record", DELAY),
    ("PS-17", "it must leave the record at `held`", DELAY),
    ("PS-18", "The client must treat that as `held`.", DELAY),
    ("PS-19", "they must search from 1", INSIDE),
    (
        "PS-20",
        "the overshoot must be at least 1.",
        Judged::NotObservable("it concerns only changes that are cut short"),
    ),
    ("PS-21", "A driver must - report the code", INSIDE),
    ("PS-22", "The client must choose its own validity", INSIDE),
    ("PS-23", "The client must not probe, because without a confirm", Judged::Rule),
    ("PS-24", "Each step must take less than a quarter of the validity", WORK),
    ("PS-25", "It must not start a step", WORK),
    ("PS-26", "A request that gets no answer must not block the loop", SILENCE),
];

const EXCLUSIVE_CONSUMER: [Row; 7] = [
    ("EC-1", "All clients of a lock must use the same protocol.", Judged::Rule),
    ("EC-2", "C[i] must be a classic queue.", Judged::Rule),
    ("EC-3", "a client must check the type before it treats the slot as held", Judged::Rule),
    ("EC-4", "The holder's connection must not publish here either", Judged::Rule),
    ("EC-5", "The client must declare `consumer_cancel_notify`", Judged::Rule),
    ("EC-6", "and must keep reading.", INSIDE),
    ("EC-7", "must stop at its deadline", SILENCE),
];

const TOKENS: [Row; 10] = [
    ("TK-1", "They must leave declaring the queue", Judged::Property(Property::S9)),
    ("TK-2", "They must never acknowledge.", Judged::Property(Property::TokensConserved)),
    ("TK-3", "The queue must not be probed by publishing", Judged::Property(Property::S9)),
    ("TK-4", "The connection that holds must not publish.", Judged::Rule),
    ("TK-5", "The library must not reconnect automatically.", Judged::Rule),
    ("TK-6", "First it must know how many tokens there are", API),
    ("TK-7", "Two observations must agree", API),
    ("TK-8", "So the API must first show the admin mutex", API),
    (
        "TK-9",
        "It must not be given −1",
        Judged::NotObservable("the tested queues are classic queues"),
    ),
    ("TK-10", "must stop at its deadline", SILENCE),
];

const TRUE_MUTEX: [Row; 3] = [
    ("MX-1", "That connection must not publish", MUTEXES),
    ("MX-2", "must hold nothing else", MUTEXES),
    ("MX-3", "it must await the answer", MUTEXES),
];
