//! Resolves the consumer tags and delivery tags of a connection to queues. A cancel or an
//! acknowledgement contains only such a tag. See `gate` for the use of the names.

use std::collections::{HashMap, VecDeque};

use super::method::Method;
use crate::history::Sender;

/// The tags of one connection, by channel.
#[derive(Default)]
pub struct Names {
    channels: HashMap<u16, Tags>,
}

#[derive(Default)]
struct Tags {
    /// The queues of unanswered consumes and gets, in the order of the requests.
    consuming: VecDeque<Source>,
    getting: VecDeque<Source>,
    consumers: HashMap<String, Source>,
    deliveries: HashMap<u64, String>,
}

/// The source of messages.
#[derive(Clone, Default)]
struct Source {
    queue: String,
    /// Whether the messages are never acknowledged.
    no_ack: bool,
}

impl Names {
    /// Returns the queue that the method concerns, or an empty name if it is unknown.
    pub fn queue(&self, method: &Method) -> String {
        if !method.queue.is_empty() {
            return method.queue.clone();
        }
        let Some(tags) = self.channels.get(&method.channel) else { return String::new() };
        let (consumer, delivery) = (method.fields.consumer.as_ref(), method.fields.delivery);
        let queue = match delivery {
            Some(delivery) => tags.deliveries.get(&delivery),
            None => {
                consumer.and_then(|consumer| tags.consumers.get(consumer)).map(|from| &from.queue)
            }
        };
        queue.cloned().unwrap_or_default()
    }

    /// Records the tags in a method.
    pub fn note(&mut self, method: &Method) {
        if method.sender == Sender::Broker && method.name == "basic.ack" {
            // Confirms a publish. Its tag counts publishes.
            return;
        }
        if method.name.starts_with("channel.") {
            self.channels.remove(&method.channel);
            return;
        }
        let tags = self.channels.entry(method.channel).or_default();
        let consumer = method.fields.consumer.clone().unwrap_or_default();
        let source = || Source { queue: method.queue.clone(), no_ack: method.fields.flag };
        match method.name.as_str() {
            "basic.consume" if consumer.is_empty() => tags.consuming.push_back(source()),
            "basic.consume" => {
                tags.consumers.insert(consumer, source());
            }
            "basic.consume-ok" if !tags.consumers.contains_key(&consumer) => {
                let from = tags.consuming.pop_front().unwrap_or_default();
                tags.consumers.insert(consumer, from);
            }
            "basic.get" => tags.getting.push_back(source()),
            "basic.get-ok" | "basic.get-empty" => {
                let from = tags.getting.pop_front().unwrap_or_default();
                tags.deliver(method, from);
            }
            "basic.deliver" => {
                let from = tags.consumers.get(&consumer).cloned().unwrap_or_default();
                tags.deliver(method, from);
            }
            "basic.ack" | "basic.nack" | "basic.reject" => tags.settle(method),
            _ => {}
        }
    }
}

impl Tags {
    fn deliver(&mut self, method: &Method, from: Source) {
        if let Some(delivery) = method.fields.delivery
            && !from.no_ack
        {
            self.deliveries.insert(delivery, from.queue);
        }
    }

    fn settle(&mut self, method: &Method) {
        let Some(delivery) = method.fields.delivery else { return };
        if method.fields.flag && method.name != "basic.reject" {
            // With `multiple`, 0 means all.
            self.deliveries.retain(|&one, _| delivery != 0 && one > delivery);
        } else {
            self.deliveries.remove(&delivery);
        }
    }
}
