//! Which bytes of a broker reach lapin's parser, and in which form.

use amq_protocol::frame::{AMQPFrame, parse_frame};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Stack of a thread on which everything that was checked must be parsed, in bytes. lapin's
/// thread has eight times as much.
const STACK: usize = 256 * 1024;

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap();
    [&[kind][..], &channel.to_be_bytes(), &size.to_be_bytes(), payload, &[END]].concat()
}

fn method(class: u16, number: u16, arguments: &[u8]) -> Vec<u8> {
    frame(METHOD, 1, &[&class.to_be_bytes(), &number.to_be_bytes(), arguments].concat())
}

fn sized(content: &[u8]) -> Vec<u8> {
    [&u32::try_from(content.len()).unwrap().to_be_bytes(), content].concat()
}

/// A table in which this number of arrays are nested.
fn nested(depth: usize) -> Vec<u8> {
    let value = (0..depth).fold(b"V".to_vec(), |inner, _| [b"A", &sized(&inner)[..]].concat());
    sized(&[b"\x01k", &value[..]].concat())
}

fn start(table: &[u8]) -> Vec<u8> {
    method(10, 10, &[b"\x00\x09", table, &sized(b"PLAIN"), &sized(b"en_US")].concat())
}

/// A message's header with the size of its body and a table of headers.
fn header(size: u64, table: &[u8]) -> Vec<u8> {
    let flags = 1_u16 << 15 | 1 << 13;
    frame(
        HEADER,
        1,
        &[b"\0\x3c\0\0", &size.to_be_bytes()[..], &flags.to_be_bytes(), b"\x04text", table]
            .concat(),
    )
}

fn deliver() -> Vec<u8> {
    method(60, 60, b"\x01t\0\0\0\0\0\0\0\x01\0\0\x01q")
}

fn returned() -> Vec<u8> {
    method(60, 50, b"\x01\x38\x08NO_ROUTE\0\x01q")
}

/// A message that a client publishes.
fn published() -> Vec<u8> {
    [method(60, 40, b"\0\0\0\x01q\x01"), header(1, &sized(b"")), frame(BODY, 1, b"x")].concat()
}

fn received(frames: &mut Frames, bytes: &[u8]) -> Result<Vec<u8>, Violation> {
    let mut checked = Vec::new();
    frames.receive(bytes, &mut checked).map(|()| checked)
}

fn parsed(mut bytes: &[u8]) -> Vec<AMQPFrame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (rest, frame) = parse_frame(bytes).unwrap();
        frames.push(frame);
        bytes = rest;
    }
    frames
}

#[test]
fn what_a_broker_sends_passes_unchanged() {
    let tune = method(10, 30, b"\x07\xff\0\x02\0\0\0\x3c");
    let bytes = [
        start(&nested(MAX_NESTED)),
        tune,
        deliver(),
        header(3, &sized(b"\x01nI\0\0\0\x07")),
        frame(BODY, 1, b"abc"),
        frame(HEARTBEAT, 0, b""),
        method(10, 50, b"\0\xc8\x02OK\0\0\0\0"),
    ]
    .concat();
    assert_eq!(received(&mut Frames::default(), &bytes), Ok(bytes.clone()));
    assert_eq!(parsed(&bytes).len(), 7);
    let version = b"AMQP\x00\x00\x09\x01";
    assert_eq!(received(&mut Frames::default(), version), Ok(version.to_vec()));
}

/// Depth of arrays that are allowed below the table itself.
const MAX_NESTED: usize = 15;

#[test]
fn what_no_broker_sends_ends_the_connection() {
    let violation = |bytes: &[u8]| received(&mut Frames::default(), bytes).unwrap_err();
    assert_eq!(violation(&start(&nested(MAX_NESTED + 1))), Violation::DeepTable);
    assert_eq!(violation(&start(&nested(3000))), Violation::DeepTable);
    assert_eq!(
        violation(&start(&sized(&[b"\x01kA", &sized(&[b'V'; 2000])[..]].concat()))),
        Violation::LargeTable
    );
    assert_eq!(violation(&start(b"\xff\xff\xff\xff")), Violation::Malformed);
    assert_eq!(violation(&start(&sized(b"\x01k?"))), Violation::Malformed);
    assert_eq!(violation(&start(&sized(b"\x01kS\0\0\xff\xff"))), Violation::Malformed);
    assert_eq!(violation(b"HTTP/1.1 400 Bad Request\r\n"), Violation::NotAmqp);
    assert_eq!(violation(b"AMPQ1234"), Violation::NotAmqp);
    assert_eq!(violation(b"\x01\0\0\0\0\0\x04\0\x0a\0\x1eX"), Violation::NotAmqp);
    assert_eq!(violation(b"\x01\0\0\x7f\xff\xff\xff"), Violation::LargeFrame(0x7fff_ffff));
    // queue.declare has a table, and a broker never sends it.
    assert_eq!(violation(&method(50, 10, &nested(3000))), Violation::ForeignMethod(50, 10));
    assert_eq!(violation(&method(10, 30, b"\0\0\0\0\x10\0\0\0")), Violation::SmallFrameMax(4096));
    let few = method(10, 30, b"\0\x02\0\x02\0\0\0\0");
    assert_eq!(violation(&few), Violation::SmallChannelMax(2));
    assert_eq!(violation(&frame(HEARTBEAT, 0, b"x")), Violation::Malformed);
    for len in 0..14 {
        assert_eq!(violation(&frame(HEADER, 1, &[0; 14][..len])), Violation::Malformed);
        assert_eq!(violation(&method(10, 30, &[0; 14][..len.min(5)])), Violation::Malformed);
    }
    assert_eq!(violation(&frame(METHOD, 1, b"")), Violation::Malformed);
    assert_eq!(violation(&returned()), Violation::ForeignReturn);
}

#[test]
fn the_reason_of_a_closed_connection_is_known_before_its_frame_is_read() {
    let closing = |code: u16, text: &[u8]| {
        let len = u8::try_from(text.len()).unwrap();
        method(10, 50, &[&code.to_be_bytes()[..], &[len], text, &[0; 4]].concat())
    };
    let reason = |frames: &[Vec<u8>]| {
        let closes = Closes::default();
        let mut recording = Frames::recording(closes.clone());
        received(&mut recording, &frames.concat()).unwrap();
        closes.failure.get().cloned()
    };
    assert_eq!(reason(&[deliver()]), None);
    for code in [320, 541, 200] {
        let lost = AmqpError::ConnectionLost { why: "out of order".to_owned() };
        assert_eq!(reason(&[deliver(), closing(code, b"out of order")]), Some(lost), "{code}");
    }
    let forced = AmqpError::ConnectionLost { why: "\u{fffd}".to_owned() };
    assert_eq!(reason(&[closing(320, b"\xff"), closing(320, b"again")]), Some(forced));
    for cut in [&b""[..], b"\x01", b"\x01\x40", b"\x01\x40\x05out"] {
        let answer = received(&mut Frames::default(), &method(10, 50, cut));
        assert_eq!(answer, Err(Violation::Malformed), "{cut:?}");
    }
}

#[test]
fn a_message_beyond_a_limit_arrives_without_what_exceeds_it() {
    let mut frames = Frames::default();
    let deep = [deliver(), header(3, &nested(3000)), frame(BODY, 1, b"abc")].concat();
    let empty = frame(HEADER, 1, &[b"\0\x3c\0\0", &3_u64.to_be_bytes()[..], b"\0\0"].concat());
    let expected = [deliver(), empty, frame(BODY, 1, b"abc")].concat();
    assert_eq!(received(&mut frames, &deep), Ok(expected));
    let large = header(MAX_BODY + 1, &sized(b""));
    let part = frame(BODY, 1, &[0; 16_000]);
    let parts = part.repeat(5);
    let others = [deliver(), header(1, &sized(b"")), frame(BODY, 1, b"x")].concat();
    let bytes = [deliver(), large, parts, others.clone()].concat();
    let expected = [deliver(), header(0, &sized(b"")), others].concat();
    assert_eq!(received(&mut frames, &bytes), Ok(expected));
    // An endless body costs nothing.
    let endless = [deliver(), header(1 << 62, &sized(b""))].concat();
    let begun = received(&mut frames, &endless).unwrap();
    assert_eq!(parsed(&begun).len(), 2);
    for _ in 0..1000 {
        assert_eq!(received(&mut frames, &part), Ok(Vec::new()));
    }
}

#[test]
fn a_returned_message_has_its_routing_key_only_and_was_published() {
    let mut frames = Frames::default();
    frames.send(b"AMQP\x00\x00\x09\x01", &mut Vec::new());
    let own = [published(), frame(HEARTBEAT, 0, b""), published()].concat();
    frames.send(&own, &mut Vec::new());
    let bytes = [returned(), header(3, &nested(2)), frame(BODY, 1, b"abc")].concat();
    let empty = frame(HEADER, 1, &[b"\0\x3c\0\0", &[0; 8][..], b"\0\0"].concat());
    let expected = [returned(), empty].concat();
    assert_eq!(received(&mut frames, &bytes), Ok(expected.clone()));
    assert_eq!(received(&mut frames, &bytes), Ok(expected));
    assert_eq!(received(&mut frames, &bytes), Err(Violation::ForeignReturn));
}

#[test]
fn unasked_frames_have_a_limit_until_the_client_sends_again() {
    let blocked = method(10, 60, b"\x03low");
    let message = [deliver(), header(16_000, &sized(b"")), frame(BODY, 1, &[0; 16_000])].concat();
    for unasked in [blocked, message] {
        let mut frames = Frames::default();
        frames.send(b"AMQP\x00\x00\x09\x01", &mut Vec::new());
        let fits = MAX_UNASKED / unasked.len();
        for own in [published(), frame(HEARTBEAT, 0, b"")] {
            for _ in 0..fits {
                received(&mut frames, &unasked).unwrap();
            }
            frames.send(&own, &mut Vec::new());
        }
        assert_eq!(received(&mut frames, &unasked), Err(Violation::Flood), "after a heartbeat");
    }
    // Answers are asked for, and heartbeats cost nothing.
    let mut frames = Frames::default();
    let free = [method(50, 11, b"\x01q\0\0\0\0\0\0\0\0"), frame(HEARTBEAT, 0, b"")].concat();
    for _ in 0..100_000 {
        received(&mut frames, &free).unwrap();
    }
}

/// A frame, mostly well formed.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        Just(b"V".to_vec()),
        any::<i32>().prop_map(|n| [b"I", &n.to_be_bytes()[..]].concat()),
        vec(any::<u8>(), 0..40).prop_map(|text| [b"S", &sized(&text)[..]].concat()),
        vec(any::<u8>(), 0..9),
    ];
    let value = value.prop_recursive(20, 200, 4, |inner| {
        vec(inner, 0..4).prop_map(|values| [b"A", &sized(&values.concat())[..]].concat())
    });
    let table = vec(value, 0..4).prop_map(|values| {
        sized(&values.into_iter().flat_map(|v| [b"\x01k", &v[..]].concat()).collect::<Vec<u8>>())
    });
    prop_oneof![
        table.clone().prop_map(|table| start(&table)),
        (0..3_000_usize).prop_map(|depth| start(&nested(depth))),
        (any::<u64>(), table).prop_map(|(size, table)| header(size, &table)),
        (any::<u64>(), 0..3_000_usize).prop_map(|(size, depth)| header(size, &nested(depth))),
        (0..100_u16, 0..130_u16, vec(any::<u8>(), 0..50)).prop_map(|(c, m, a)| method(c, m, &a)),
        (any::<u8>(), any::<u16>(), vec(any::<u8>(), 0..50))
            .prop_map(|(kind, channel, payload)| frame(kind, channel, &payload)),
        vec(any::<u8>(), 0..2_000).prop_map(|payload| frame(BODY, 1, &payload)),
        Just(deliver()),
        vec(any::<u8>(), 0..20),
    ]
}

fn cases() -> ProptestConfig {
    let soak = std::env::var("LOCKKEEPER_SOAK").is_ok();
    ProptestConfig::with_cases(if soak { 200_000 } else { 2_000 })
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn random_frames_are_parsed_on_a_small_stack_and_never_split_by_how_they_arrive(
        frames in vec(any_frame(), 1..12),
        cut in 1..300_usize,
    ) {
        let bytes = frames.concat();
        let mut whole = Vec::new();
        let all = Frames::default().receive(&bytes, &mut whole);
        let (mut parts, mut in_parts) = (Frames::default(), Vec::new());
        let cut = bytes.chunks(cut).try_for_each(|part| parts.receive(part, &mut in_parts));
        prop_assert_eq!(all, cut);
        prop_assert_eq!(&whole, &in_parts);
        let parsing = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let mut rest = whole.as_slice();
            while let Ok((after, frame)) = parse_frame(rest) {
                // lapin prints each frame.
                std::hint::black_box(format!("{frame:?}"));
                rest = after;
            }
        });
        prop_assert!(parsing.unwrap().join().is_ok());
    }
}
