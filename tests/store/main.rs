//! The store against a real Redis: every script alone, beside clients that
//! follow the protocol's text, and against servers that refuse.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/authority.rs"]
mod authority;
#[path = "../support/pressure_text.rs"]
mod pressure_text;
#[path = "../support/redis.rs"]
mod redis_support;
#[path = "../support/redis_tls.rs"]
mod redis_tls;

mod bound;
mod close;
mod cluster;
mod create;
mod delete;
mod doctor;
mod errors;
mod schedules;
mod sentinel;
mod servers;
mod tls;
mod valkey;

use pressure_text::TextQueue;
use redis_support::Place;

/// The place's queue as a foreign client names it.
fn text_queue(place: &Place) -> TextQueue {
    TextQueue {
        url: place.url.clone(),
        prefix: place.queue.prefix().to_owned(),
        name: place.queue.as_str().to_owned(),
    }
}

/// The elements `0` to `count - 1`.
fn numbers(count: usize) -> impl Iterator<Item = String> + Send + 'static {
    (0..count).map(|number| number.to_string())
}
