//! How clients and administrators find out whether a queue exists. Only the name; see
//! `probe` in the crate `amqp` for the requests.

use super::SettingsError;

/// How to find out whether a queue exists, without being its owner or changing it. The
/// source document "amqp-locks" announces the second and third way for brokers other than
/// RabbitMQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Probe {
    /// Mandatory messages with publisher confirms, an extension of RabbitMQ.
    Confirm,
    /// Mandatory messages in a transaction, which is part of AMQP 0-9-1.
    Tx,
    /// Passive declares only. Costs a channel for each missing queue, and on some brokers
    /// a connection for each held slot.
    Declare,
}

impl Probe {
    /// Parses the value of a Secret's key `probe`. `auto` and an empty value mean that the
    /// broker's properties decide.
    pub(super) fn from_key(text: Option<&str>) -> Result<Option<Self>, SettingsError> {
        Ok(Some(match text {
            None | Some("" | "auto") => return Ok(None),
            Some("confirm") => Self::Confirm,
            Some("tx") => Self::Tx,
            Some("declare") => Self::Declare,
            Some(_) => {
                let why = "expected auto, confirm, tx or declare";
                return Err(SettingsError::BadValue { key: "probe", why });
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::RabbitmqSettings;
    use crate::connection::tests::data;

    #[test]
    fn a_secret_names_the_probe_or_leaves_it_to_the_broker() {
        let probe = |value: &str| {
            let keys = [("amqpUri", "amqp://u:p@h"), ("probe", value)];
            RabbitmqSettings::from_secret(&data(&keys), None).map(|settings| settings.probe)
        };
        for (value, expected) in [
            ("auto", None),
            ("", None),
            ("confirm", Some(Probe::Confirm)),
            ("tx", Some(Probe::Tx)),
            ("declare\n", Some(Probe::Declare)),
        ] {
            assert_eq!(probe(value), Ok(expected), "{value}");
        }
        let error = probe("guess").unwrap_err().to_string();
        assert!(error.contains("probe") && error.contains("confirm, tx or declare"), "{error}");
    }
}
