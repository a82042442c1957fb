//! The queue as programs use it, against a real Redis and beside clients that
//! others wrote for the protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/pressure_pseudo.rs"]
mod pressure_pseudo;
#[path = "../support/pressure_text.rs"]
mod pressure_text;
#[path = "../support/pressure_text_unblocked.rs"]
mod pressure_text_unblocked;
#[path = "../support/redis.rs"]
mod redis_support;

mod abandoning;
mod limits;
mod operations;
mod schedules;
mod stopping;
mod waiting;

use lockkeeper::pressure::{Queue, QueueOptions};
use pressure_text::TextQueue;
use redis_support::Place;

/// The place's queue as a client of ours has it, with connections of its own.
fn ours(place: &Place, id: &str) -> Queue {
    let options = QueueOptions { client_id: id.to_owned(), ..QueueOptions::default() };
    Queue::new(place.settings(), place.queue.clone(), options)
}

/// The place's queue as a foreign client names it.
fn text_queue(place: &Place) -> TextQueue {
    TextQueue {
        url: place.url.clone(),
        prefix: place.queue.prefix().to_owned(),
        name: place.queue.as_str().to_owned(),
    }
}
