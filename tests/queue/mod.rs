//! The queue as programs use it, against a real Redis and together with foreign clients
//! of the protocol.

mod abandoning;
mod attempts;
mod leases;
mod limits;
mod operations;
mod outages;
mod python_clients;
mod schedules;
mod stopping;
mod waiting;

use lockkeeper_pressure::{Queue, QueueOptions};
use lockkeeper_testkit::pressure_text::TextQueue;
use lockkeeper_testkit::redis::TestQueue;

/// Returns the place's queue as our client, with its own connections.
fn ours(place: &TestQueue, id: &str) -> Queue {
    let options = QueueOptions::default().with_client_id(id);
    Queue::new(place.settings(), place.queue.clone(), options)
}

/// Returns the place's queue for a foreign client.
fn text_queue(place: &TestQueue) -> TextQueue {
    TextQueue {
        url: place.url.clone(),
        prefix: place.queue.prefix().to_owned(),
        name: place.queue.as_str().to_owned(),
    }
}
