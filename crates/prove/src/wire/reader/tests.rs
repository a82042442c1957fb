//! Tests parsing on data that is split at every position.

use super::{Found, Reader};
use crate::history::Sender;
use crate::wire::frames::{self, body, declare, declare_ok, heartbeat, publish, reject};

/// Returns the protocol header and frames of every kind, and the text of each expected method.
fn recorded() -> (Vec<u8>, Vec<String>) {
    let long = "é".repeat(60);
    let frames = [
        b"AMQP\0\0\x09\x01".to_vec(),
        declare(1, "a"),
        heartbeat(),
        publish(1, "b"),
        // Frames of another channel between the frames of a message.
        body(1, long.as_bytes())[..22].to_vec(),
        declare_ok(2, "c"),
        body(1, long.as_bytes())[22..].to_vec(),
        publish(3, "empty"),
        body(3, b""),
        reject(1, 7),
        frames::close(1, 405),
        frames::consume(2, "d", "tag"),
    ];
    let expected = [
        "1 queue.declare a exclusive".to_owned(),
        "1 basic.publish b flag".to_owned(),
        "2 queue.declare-ok c messages 3 consumers 1".to_owned(),
        format!("1 content b body {}", "é".repeat(32)),
        "3 basic.publish empty flag".to_owned(),
        "3 content empty body ".to_owned(),
        "1 basic.reject  delivery 7 requeue".to_owned(),
        "1 channel.close  code 405".to_owned(),
        "2 basic.consume d consumer tag exclusive".to_owned(),
    ];
    (frames.concat(), expected.to_vec())
}

fn text(found: &Found) -> String {
    let (method, fields) = (&found.method, &found.method.fields);
    let mut text = format!("{} {} {}", method.channel, method.name, method.queue);
    let optional = [
        ("consumer", fields.consumer.clone()),
        ("delivery", fields.delivery.map(|tag| tag.to_string())),
        ("code", fields.code.map(|code| code.to_string())),
        ("messages", fields.messages.map(|count| count.to_string())),
        ("consumers", fields.consumers.map(|count| count.to_string())),
        ("body", fields.body.clone()),
    ];
    for (name, value) in optional {
        text.extend(value.map(|value| format!(" {name} {value}")));
    }
    let flags =
        [("exclusive", fields.exclusive), ("flag", fields.flag), ("requeue", fields.requeue)];
    for (name, _) in flags.into_iter().filter(|(_, set)| *set) {
        text.extend([" ", name]);
    }
    text
}

/// Feeds the parts to a reader, and checks that every position is in its part.
fn read(parts: &[&[u8]]) -> Vec<String> {
    let mut reader = Reader::new(1, Sender::Client);
    let mut all = Vec::new();
    for part in parts {
        for found in reader.read(part).unwrap() {
            assert!(found.start < found.end && found.end <= part.len(), "{found:?}");
            all.push(text(&found));
        }
    }
    all
}

#[test]
fn finds_the_same_methods_wherever_the_data_is_split() {
    let (data, expected) = recorded();
    assert_eq!(read(&[&data]), expected);
    for at in 0..=data.len() {
        assert_eq!(read(&[&data[..at], &data[at..]]), expected, "split at {at}");
    }
    for size in 1..20 {
        let parts: Vec<&[u8]> = data.chunks(size).collect();
        assert_eq!(read(&parts), expected, "parts of {size}");
    }
}

#[test]
fn the_position_of_a_method_is_that_of_its_frame() {
    let mut reader = Reader::new(1, Sender::Client);
    let (first, second) = (declare(1, "a"), declare(1, "b"));
    let found = reader.read(&[&first[..], &second].concat()).unwrap();
    let at: Vec<(usize, usize)> = found.iter().map(|found| (found.start, found.end)).collect();
    assert_eq!(at, [(0, first.len()), (first.len(), first.len() + second.len())]);
}

#[test]
fn the_frame_sizes_add_up_to_the_size_of_the_data() {
    let (data, _) = recorded();
    for size in 1..20 {
        let mut reader = Reader::new(1, Sender::Client);
        let mut passed = Vec::new();
        for part in data.chunks(size) {
            reader.read(part).unwrap();
            passed.extend(reader.passed());
        }
        assert_eq!(passed.iter().map(|frame| frame.bytes).sum::<usize>(), data.len());
        let heartbeats: Vec<_> = passed.iter().filter(|frame| frame.heartbeat).collect();
        assert!(heartbeats.len() == 1 && heartbeats[0].bytes == 8, "{heartbeats:?}");
    }
}

#[test]
fn a_closed_channel_ends_an_incomplete_message() {
    let data = [publish(1, "a"), frames::close(1, 312), body(1, b"late"), declare(1, "b")];
    let expected =
        ["1 basic.publish a flag", "1 channel.close  code 312", "1 queue.declare b exclusive"];
    assert_eq!(read(&[&data.concat()]), expected);
}

#[test]
fn stops_parsing_at_data_that_is_not_amqp() {
    let mut reader = Reader::new(1, Sender::Broker);
    let error = reader.read(b"\x09\0\0\0\0\0\0\xce").unwrap_err();
    assert!(error.starts_with("Broker sent no AMQP frame"), "{error}");
    assert_eq!(reader.read(&declare(1, "a")), Ok(Vec::new()));
}
