//! The store against a real Redis: every script alone, together with clients that follow
//! the protocol's text, and against servers that reject requests.

mod bound;
mod close;
mod cluster;
mod create;
mod delete;
mod doctor;
mod errors;
mod failover;
mod last_words;
mod resharding;
mod schedules;
mod sentinel;
mod servers;
mod tls;
mod valkey;

use lockkeeper_testkit::pressure_text::TextQueue;
use lockkeeper_testkit::redis::TestQueue;

/// Returns the place's queue for a foreign client.
fn text_queue(place: &TestQueue) -> TextQueue {
    TextQueue {
        url: place.url.clone(),
        prefix: place.queue.prefix().to_owned(),
        name: place.queue.as_str().to_owned(),
    }
}

/// Returns the elements `0` to `count - 1`.
fn numbers(count: usize) -> impl Iterator<Item = String> + Send + 'static {
    (0..count).map(|number| number.to_string())
}
