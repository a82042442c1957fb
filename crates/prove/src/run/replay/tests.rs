//! Tests the options of repeated runs, and the comparison of verdicts.

use super::*;
use crate::check::tests::Story;
use crate::check::verdict::{Cause, Violation};
use crate::history::{Faults, History, Variables};

fn options(way: Way, rules: Rules) -> RunOptions {
    RunOptions {
        way,
        second_driver: Some("another driver".to_owned()),
        administrator: "administrator".to_owned(),
        url: Some(Url::parse("amqp://user:secret@127.0.0.1:5672").unwrap()),
        rules,
        lock: "the lock".to_owned(),
        seed: 7,
        duration: Duration::from_millis(2500),
        clients: 3,
        slots: 5,
        faults: Faults { kill: 1, cut: 2, slow: 3, again: 4 },
        resize_within: Duration::from_millis(50),
        program: PathBuf::from("/program"),
    }
}

/// Returns the header of a run with these options, as read from a file.
fn recorded(options: &RunOptions) -> Header {
    let header = options.header(String::new(), Duration::ZERO);
    let mut file = Vec::new();
    History { header, events: Vec::new() }.write(&mut file).unwrap();
    assert!(!String::from_utf8_lossy(&file).contains("secret"));
    History::read(&*file).unwrap().header
}

#[test]
fn repeats_a_run_with_the_recorded_options() {
    let variables = Variables { slot_env: Some("SLOT".to_owned()), ..Variables::default() };
    for way in
        [Way::Driver("a driver".to_owned()), Way::Exec("{lock} {work}".to_owned(), variables)]
    {
        let options = options(way, Rules::ExclusiveConsumer);
        let header = recorded(&options);
        let again =
            RunOptions::again(&header, options.url.clone(), options.program.clone()).unwrap();
        assert_ne!(again.lock, options.lock);
        let again = RunOptions { lock: options.lock.clone(), ..again };
        assert_eq!(format!("{again:?}"), format!("{options:?}"));
    }
}

#[test]
fn reports_missing_options_and_a_missing_url() {
    let options = options(Way::Driver(String::new()), Rules::Token);
    let again = |header: &Header, url| RunOptions::again(header, url, PathBuf::new()).map(|_| ());
    assert_eq!(again(&recorded(&options), None), Err(ReplayError::NoUrl));
    let foreign = Story::new(Rules::Token, 1).history().header;
    assert_eq!(again(&foreign, options.url.clone()), Err(ReplayError::NotPlayed));
    let no_broker = RunOptions { rules: Rules::None, ..options };
    assert_eq!(again(&recorded(&no_broker), None), Ok(()));
}

#[test]
fn compares_properties_and_causes() {
    let verdict = |found: &[(Property, Cause)]| {
        let violation = |&(property, cause): &(Property, Cause)| Violation {
            property,
            cause,
            at: 0,
            event: 0,
            processes: Vec::new(),
            what: String::new(),
            rule: None,
        };
        Verdict { violations: found.iter().map(violation).collect(), ..Verdict::default() }
    };
    let recorded = verdict(&[
        (Property::S2, Cause::Client),
        (Property::S2, Cause::Broker),
        (Property::S2, Cause::Client),
        (Property::S5, Cause::Client),
        (Property::S9, Cause::Client),
    ]);
    let again = verdict(&[
        (Property::S2, Cause::Broker),
        (Property::S9, Cause::Administrator),
        (Property::S6, Cause::Client),
    ]);
    let expected = [(Property::S2, true), (Property::S5, false), (Property::S9, false)];
    assert_eq!(compare(&recorded, &again), expected);
}
