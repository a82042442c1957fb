//! Which frames of a client reach the broker.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::frame::{BODY, END, HEADER};

const DECLARE: (u16, u16) = (50, 10);
const GREETING: &[u8] = b"AMQP\x00\x00\x09\x01";

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap();
    [&[kind][..], &channel.to_be_bytes(), &size.to_be_bytes(), payload, &[END]].concat()
}

fn method(channel: u16, (class, number): (u16, u16)) -> Vec<u8> {
    frame(METHOD, channel, &[&class.to_be_bytes()[..], &number.to_be_bytes(), b"\x01q"].concat())
}

fn published(channel: u16) -> Vec<u8> {
    let content = [frame(HEADER, channel, &[0; 14]), frame(BODY, channel, b"x")].concat();
    [method(channel, PUBLISH), content].concat()
}

/// The frames of `sent` that reach the broker. They are written together.
fn passed(sent: &[Vec<u8>]) -> Vec<u8> {
    let mut passed = Vec::new();
    Outgoing::default().read(&[GREETING, &sent.concat()].concat(), &mut passed);
    passed.strip_prefix(GREETING).unwrap().to_vec()
}

#[test]
fn no_frame_follows_the_close_of_its_channel() {
    let others = [method(2, DECLARE), published(2), method(0, (10, 41))];
    for close in [CLOSE, CLOSE_OK] {
        let before = [method(1, OPEN), method(1, DECLARE), published(1), method(1, close)];
        let dropped = [method(1, DECLARE), published(1), method(1, CLOSE)];
        let after = [method(1, OPEN), method(1, DECLARE), published(1)];
        let sent = [&before[..], &dropped, &others, &after].concat();
        assert_eq!(passed(&sent), [&before[..], &others, &after].concat().concat(), "{close:?}");
    }
}

#[test]
fn a_close_of_the_broker_is_confirmed_once_although_the_client_closes_too() {
    let (close, confirmed) = (method(1, CLOSE), method(1, CLOSE_OK));
    let both = [close.clone(), confirmed.clone()];
    assert_eq!(passed(&both), both.concat());
    assert_eq!(passed(&[confirmed.clone(), close, confirmed.clone()]), confirmed);
}

#[test]
fn dropped_frames_are_not_counted() {
    let mut passed = Vec::new();
    let mut outgoing = Outgoing::default();
    let sent = [GREETING, &published(1), &method(1, CLOSE_OK), &published(1)].concat();
    let counts = outgoing.read(&sent, &mut passed);
    assert_eq!((counts.published, counts.others), (1, 4));
    let counts = outgoing.read(&frame(HEARTBEAT, 0, b""), &mut passed);
    assert_eq!((counts.published, counts.others), (0, 0));
}

/// A frame of a client on one of three channels.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![Just(OPEN), Just(CLOSE), Just(CLOSE_OK), Just(DECLARE)];
    prop_oneof![
        3 => (0..3_u16, number).prop_map(|(channel, number)| method(channel, number)),
        1 => (1..3_u16).prop_map(published),
        1 => Just(frame(HEARTBEAT, 0, b"")),
    ]
}

proptest! {
    #[test]
    fn dropped_frames_do_not_depend_on_how_bytes_are_written(
        sent in vec(any_frame(), 1..20),
        size in 1..40_usize,
    ) {
        let (mut outgoing, mut in_parts) = (Outgoing::default(), Vec::new());
        for part in [GREETING, &sent.concat()].concat().chunks(size) {
            outgoing.read(part, &mut in_parts);
        }
        prop_assert_eq!(&in_parts[GREETING.len()..], passed(&sent));
    }
}
