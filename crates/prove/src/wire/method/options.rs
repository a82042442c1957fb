//! Reads those options of a request that a history records in one list. See the parent module for
//! the other fields.

use amq_protocol::protocol::{AMQPClass, basic, connection, queue};
use amq_protocol::types::{AMQPValue, FieldTable};

/// Prefix of the arguments that contain holder facts.
const FACT: &str = "x-lockkeeper-";

/// Maximum length of a holder fact, in bytes: docs/protocols/persistent-semaphore.md, "Holder
/// facts". Shorter ones are not recorded.
const FACT_BYTES: usize = 500;

/// Texts longer than this are recorded by their length, in bytes.
const TEXT_BYTES: usize = 64;

/// Returns the options of a `queue.declare`, `basic.consume` or `connection.start-ok`, sorted.
/// Returns `None` for other methods and for a passive declare.
pub fn options(class: &AMQPClass) -> Option<Vec<String>> {
    let mut options = match class {
        AMQPClass::Connection(connection::AMQPMethod::StartOk(start)) => {
            capabilities(&start.client_properties)
        }
        AMQPClass::Queue(queue::AMQPMethod::Declare(declare)) if !declare.passive => {
            let flags = [("durable", declare.durable), ("auto-delete", declare.auto_delete)];
            let set = flags.into_iter().filter(|&(_, set)| set).map(|(name, _)| name.to_owned());
            set.chain(arguments(&declare.arguments)).collect()
        }
        AMQPClass::Basic(basic::AMQPMethod::Consume(consume)) => {
            arguments(&consume.arguments).collect()
        }
        _ => return None,
    };
    options.sort_unstable();
    Some(options)
}

/// Returns the names of the capabilities that a client declares.
fn capabilities(properties: &FieldTable) -> Vec<String> {
    let Some(AMQPValue::FieldTable(capabilities)) = properties.inner().get("capabilities") else {
        return Vec::new();
    };
    let declared = |value: &AMQPValue| matches!(value, AMQPValue::Boolean(true));
    let declared = capabilities.inner().iter().filter(|(_, value)| declared(value));
    declared.map(|(name, _)| name.as_str().to_owned()).collect()
}

fn arguments(arguments: &FieldTable) -> impl Iterator<Item = String> {
    arguments.inner().iter().filter_map(|(name, value)| {
        let (name, value) = (name.as_str(), text(value));
        match value {
            Ok(text) if name.starts_with(FACT) && text.len() <= FACT_BYTES => None,
            Ok(text) if text.len() > TEXT_BYTES => Some(format!("{name}={} bytes", text.len())),
            Ok(text) => Some(format!("{name}={text}")),
            Err(other) => Some(format!("{name}={other}")),
        }
    })
}

/// Returns the text of a value, or a description of a value of another type.
fn text(value: &AMQPValue) -> Result<String, String> {
    match value {
        AMQPValue::LongString(text) => Ok(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Ok(text.as_str().to_owned()),
        AMQPValue::Boolean(value) => Err(value.to_string()),
        AMQPValue::ShortShortInt(value) => Err(value.to_string()),
        AMQPValue::ShortShortUInt(value) => Err(value.to_string()),
        AMQPValue::ShortInt(value) => Err(value.to_string()),
        AMQPValue::ShortUInt(value) => Err(value.to_string()),
        AMQPValue::LongInt(value) => Err(value.to_string()),
        AMQPValue::LongUInt(value) => Err(value.to_string()),
        AMQPValue::LongLongInt(value) => Err(value.to_string()),
        other => Err(format!("{:?}", other.get_type())),
    }
}

#[cfg(test)]
mod tests {
    use amq_protocol::types::FieldTable;

    use super::*;

    fn table(values: Vec<(&str, AMQPValue)>) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in values {
            table.insert(name.into(), value);
        }
        table
    }

    fn declare(arguments: FieldTable, passive: bool) -> Option<Vec<String>> {
        let (queue, durable, nowait) = ("q".into(), true, false);
        let (exclusive, auto_delete) = (false, false);
        options(&AMQPClass::Queue(queue::AMQPMethod::Declare(queue::Declare {
            queue,
            passive,
            durable,
            exclusive,
            auto_delete,
            nowait,
            arguments,
        })))
    }

    #[test]
    fn a_declare_is_recorded_with_its_arguments_and_long_facts() {
        let text = |bytes| AMQPValue::LongString("a".repeat(bytes).into());
        let arguments = table(vec![
            ("x-max-length", AMQPValue::LongInt(0)),
            ("x-queue-type", AMQPValue::LongString("classic".into())),
            ("x-lockkeeper-id", text(500)),
            ("x-lockkeeper-url", text(501)),
        ]);
        let expected =
            ["durable", "x-lockkeeper-url=501 bytes", "x-max-length=0", "x-queue-type=classic"];
        assert_eq!(declare(arguments.clone(), false).unwrap(), expected);
        assert_eq!(declare(arguments, true), None);
    }

    #[test]
    fn a_start_ok_is_recorded_with_its_capabilities() {
        let start =
            |client_properties| {
                let (mechanism, response, locale) = ("PLAIN".into(), "".into(), "en_US".into());
                options(&AMQPClass::Connection(connection::AMQPMethod::StartOk(
                    connection::StartOk { client_properties, mechanism, response, locale },
                )))
            };
        let capabilities = table(vec![
            ("consumer_cancel_notify", AMQPValue::Boolean(true)),
            ("publisher_confirms", AMQPValue::Boolean(false)),
        ]);
        let properties = table(vec![("capabilities", AMQPValue::FieldTable(capabilities))]);
        assert_eq!(start(properties).unwrap(), ["consumer_cancel_notify"]);
        assert_eq!(start(table(vec![])).unwrap(), [] as [&str; 0]);
    }
}
