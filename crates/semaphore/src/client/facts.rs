//! The facts by which a holder describes itself, as arguments of its queue or consumer.
//! See `holders` for how they are displayed.

use lapin::types::{AMQPValue, FieldTable};

use super::options::AcquireOptions;

/// Maximum length of a fact, in bytes. Longer texts are truncated. All facts must fit
/// into one AMQP frame, which a broker may limit to 4 KiB.
const MAX_FACT: usize = 500;

/// Truncates a client's text to the maximum length.
pub fn fact(text: &str) -> AMQPValue {
    AMQPValue::LongString(text[..text.floor_char_boundary(MAX_FACT)].into())
}

/// Returns the facts of an acquisition, as arguments of a queue or consumer.
pub fn facts(id: &str, options: &AcquireOptions) -> FieldTable {
    let mut arguments = FieldTable::default();
    let mut write = |key: &str, text: &str| {
        arguments.insert(key.into(), fact(text));
    };
    write("x-lockkeeper-id", id);
    write("x-lockkeeper-since", &now());
    let given = [
        ("x-lockkeeper-identity", &options.identity),
        ("x-lockkeeper-reason", &options.reason),
        ("x-lockkeeper-url", &options.url),
    ];
    for (key, text) in given {
        if let Some(text) = text {
            write(key, text);
        }
    }
    arguments
}

/// Returns the current time in the format of records and holder facts: RFC 3339, whole
/// seconds.
pub fn now() -> String {
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second());
    now.unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_cut_at_a_character_and_fit_into_the_smallest_frame() {
        let long = Some("é".repeat(10_000));
        let options = AcquireOptions {
            identity: long.clone(),
            reason: long.clone().map(|text| format!("a{text}")),
            url: long,
            ..AcquireOptions::default()
        };
        let facts = facts("4fz", &options);
        let length = |key: &str| match facts.inner().get(key) {
            Some(AMQPValue::LongString(text)) => {
                std::str::from_utf8(text.as_bytes()).unwrap().len()
            }
            other => panic!("{key}: {other:?}"),
        };
        assert_eq!(length("x-lockkeeper-identity"), 500);
        assert_eq!(length("x-lockkeeper-reason"), 499);
        assert_eq!(length("x-lockkeeper-url"), 500);
        assert_eq!(length("x-lockkeeper-id"), 3);
    }
}
