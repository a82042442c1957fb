//! Tests of recording: the order of events, and the values that are derived from frames.

use std::time::Duration;

use super::Recorder;
use crate::history::{ConnectionState, Frame, ProcessState, Sender, What};
use crate::wire::Observer;
use crate::wire::frames::{self, declare_ok};
use crate::wire::reader::Reader;

fn observe(observer: &impl Observer, sender: Sender, frame: &[u8]) {
    let mut reader = Reader::new(2, sender);
    for found in reader.read(frame).unwrap() {
        observer.method(&found.method);
    }
    for passed in reader.passed() {
        observer.frame(passed);
    }
}

#[test]
fn events_of_many_threads_are_in_the_order_of_time() {
    let recorder = Recorder::new();
    std::thread::scope(|scope| {
        for process in 1..=4 {
            let (recorder, observer) = (recorder.clone(), recorder.observer(process));
            scope.spawn(move || {
                for _ in 0..500 {
                    recorder.record(What::Process {
                        process,
                        state: ProcessState::Started,
                        implementation: None,
                    });
                    observe(&observer, Sender::Broker, &declare_ok(1, "a"));
                }
            });
        }
    });
    let now = recorder.at();
    let events = recorder.finish();
    assert_eq!(events.len(), 4_000);
    assert!(events.is_sorted_by_key(|event| event.at));
    assert!(events.last().unwrap().at <= now);
    assert!(recorder.finish().is_empty());
}

#[test]
fn a_method_is_recorded_with_its_process_and_its_fields() {
    let recorder = Recorder::new();
    let observer = recorder.observer(7);
    observer.connection(2, ConnectionState::Opened);
    observe(&observer, Sender::Broker, &declare_ok(1, "a"));
    let whats: Vec<What> = recorder.finish().into_iter().map(|event| event.what).collect();
    let state = ConnectionState::Opened;
    let frame = Frame {
        process: 7,
        connection: 2,
        channel: 1,
        sender: Sender::Broker,
        method: "queue.declare-ok".to_owned(),
        queue: "a".to_owned(),
        code: None,
        consumer: None,
        delivery: None,
        exclusive: false,
        flag: false,
        requeue: false,
        messages: Some(3),
        consumers: Some(1),
        body: None,
        options: None,
    };
    assert_eq!(whats, [What::Connection { process: 7, connection: 2, state }, What::Frame(frame)]);
}

#[test]
fn the_broker_and_the_longest_heartbeat_are_taken_from_the_handshakes() {
    let recorder = Recorder::new();
    assert_eq!((recorder.broker(), recorder.heartbeat()), (None, Duration::ZERO));
    let observer = recorder.observer(1);
    observe(&observer, Sender::Broker, &frames::start(0, "RabbitMQ", "3.10.8"));
    for seconds in [2, 60, 10] {
        observe(&observer, Sender::Client, &frames::tune_ok(0, seconds));
    }
    assert_eq!(recorder.broker().as_deref(), Some("RabbitMQ 3.10.8"));
    observe(&recorder.observer(2), Sender::Client, &frames::tune_ok(0, 30));
    assert_eq!(recorder.heartbeat(), Duration::from_secs(60));
    let of = [1, 2, 3].map(|process| recorder.heartbeat_of(process).as_secs());
    assert_eq!(of, [60, 30, 0]);
}

#[test]
fn sizes_are_recorded_on_request_only() {
    let (with, without) = (Recorder::with_sizes(), Recorder::new());
    for recorder in [&with, &without] {
        observe(&recorder.observer(7), Sender::Client, &frames::heartbeat());
        observe(&recorder.observer(8), Sender::Broker, &declare_ok(1, "a"));
    }
    let bytes = u64::try_from(declare_ok(1, "a").len()).unwrap();
    let sizes = with.finish_sizes();
    let seen: Vec<_> =
        sizes.iter().map(|size| (size.process, size.sender, size.bytes, size.heartbeat)).collect();
    assert_eq!(seen, [(7, Sender::Client, 8, true), (8, Sender::Broker, bytes, false)]);
    assert!(with.finish_sizes().is_empty() && without.finish_sizes().is_empty());
}
