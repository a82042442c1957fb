//! Builds AMQP frames for the tests of this module. See `reader` for the parser.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame};
use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection, queue};
use amq_protocol::types::{AMQPValue, FieldTable};

fn bytes(frame: &AMQPFrame) -> Vec<u8> {
    gen_frame(frame)(WriteContext::from(Vec::new())).unwrap().into_inner().0
}

fn method(channel: u16, class: AMQPClass) -> Vec<u8> {
    bytes(&AMQPFrame::Method(channel, class))
}

pub fn declare(channel: u16, queue: &str) -> Vec<u8> {
    method(
        channel,
        AMQPClass::Queue(queue::AMQPMethod::Declare(queue::Declare {
            queue: queue.into(),
            passive: false,
            durable: true,
            exclusive: true,
            auto_delete: false,
            nowait: false,
            arguments: FieldTable::default(),
        })),
    )
}

pub fn declare_ok(channel: u16, queue: &str) -> Vec<u8> {
    let declared = queue::DeclareOk { queue: queue.into(), message_count: 3, consumer_count: 1 };
    method(channel, AMQPClass::Queue(queue::AMQPMethod::DeclareOk(declared)))
}

pub fn publish(channel: u16, queue: &str) -> Vec<u8> {
    let publish = basic::Publish {
        exchange: "".into(),
        routing_key: queue.into(),
        mandatory: true,
        immediate: false,
    };
    method(channel, AMQPClass::Basic(basic::AMQPMethod::Publish(publish)))
}

pub fn reject(channel: u16, delivery_tag: u64) -> Vec<u8> {
    let reject = basic::Reject { delivery_tag, requeue: true };
    method(channel, AMQPClass::Basic(basic::AMQPMethod::Reject(reject)))
}

/// Returns the header and the body of a message, in frames of at most 50 bytes.
pub fn body(channel: u16, body: &[u8]) -> Vec<u8> {
    let header = AMQPContentHeader {
        class_id: 60,
        body_size: body.len() as u64,
        properties: basic::AMQPProperties::default(),
    };
    let mut all = bytes(&AMQPFrame::Header(channel, header));
    for part in body.chunks(50) {
        all.extend(bytes(&AMQPFrame::Body(channel, part.to_vec())));
    }
    all
}

/// Returns a heartbeat.
pub fn heartbeat() -> Vec<u8> {
    bytes(&AMQPFrame::Heartbeat)
}

pub fn confirm(channel: u16) -> Vec<u8> {
    method(
        channel,
        AMQPClass::Confirm(confirm::AMQPMethod::Select(confirm::Select { nowait: false })),
    )
}

pub fn start(channel: u16, product: &str, version: &str) -> Vec<u8> {
    let mut server_properties = FieldTable::default();
    let text = |text: &str| AMQPValue::LongString(text.into());
    server_properties.insert("product".into(), text(product));
    server_properties.insert("version".into(), text(version));
    method(
        channel,
        AMQPClass::Connection(connection::AMQPMethod::Start(connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties,
            mechanisms: "PLAIN".into(),
            locales: "en_US".into(),
        })),
    )
}

pub fn tune_ok(channel: u16, heartbeat: u16) -> Vec<u8> {
    let tuned = connection::TuneOk { channel_max: 10, frame_max: 131_072, heartbeat };
    method(channel, AMQPClass::Connection(connection::AMQPMethod::TuneOk(tuned)))
}

pub fn close(channel: u16, reply_code: u16) -> Vec<u8> {
    let reply_text = "no".into();
    let close = channel::Close { reply_code, reply_text, class_id: 50, method_id: 10 };
    method(channel, AMQPClass::Channel(channel::AMQPMethod::Close(close)))
}

pub fn get(channel: u16, queue: &str) -> Vec<u8> {
    let get = basic::Get { queue: queue.into(), no_ack: false };
    method(channel, AMQPClass::Basic(basic::AMQPMethod::Get(get)))
}

pub fn get_ok(channel: u16, delivery_tag: u64) -> Vec<u8> {
    method(
        channel,
        AMQPClass::Basic(basic::AMQPMethod::GetOk(basic::GetOk {
            delivery_tag,
            redelivered: false,
            exchange: "".into(),
            routing_key: "".into(),
            message_count: 0,
        })),
    )
}

pub fn consume(channel: u16, queue: &str, tag: &str) -> Vec<u8> {
    method(
        channel,
        AMQPClass::Basic(basic::AMQPMethod::Consume(basic::Consume {
            queue: queue.into(),
            consumer_tag: tag.into(),
            no_local: false,
            no_ack: false,
            exclusive: true,
            nowait: false,
            arguments: FieldTable::default(),
        })),
    )
}

pub fn consume_ok(channel: u16, tag: &str) -> Vec<u8> {
    let consuming = basic::ConsumeOk { consumer_tag: tag.into() };
    method(channel, AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(consuming)))
}

pub fn cancel(channel: u16, tag: &str) -> Vec<u8> {
    let cancel = basic::Cancel { consumer_tag: tag.into(), nowait: false };
    method(channel, AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)))
}
