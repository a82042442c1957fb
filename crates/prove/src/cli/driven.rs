//! The options that name an implementation with a driver, its protocol and its broker. See
//! `costing` and `steps` for the subcommands that have them.

use url::Url;

use crate::history::Rules;

/// An implementation with a driver, on a broker.
#[derive(Debug, clap::Args)]
pub struct Driven {
    /// Command that starts the driver. The driver reads the URL of the broker from AMQP_URL
    #[arg(long, value_name = "COMMAND")]
    pub driver: String,

    /// Protocol of the implementation
    #[arg(long, value_enum)]
    pub protocol: Rules,

    /// Driver that resizes the lock if the implementation does not support resize [default: that of
    /// lockkeeper for the protocol]
    #[arg(long, value_name = "COMMAND")]
    pub administrator: Option<String>,

    /// URL of the broker. TLS is not supported
    #[arg(long, env = "AMQP_URL", hide_env_values = true)]
    pub url: Url,
}

impl Driven {
    /// Checks that requests to the broker can be observed.
    ///
    /// # Errors
    ///
    /// The protocol has no broker, or the connection is encrypted.
    pub fn check(&self) -> Result<(), String> {
        if self.protocol == Rules::None {
            return Err("--protocol None is not supported: the requests to a broker are observed. Use the protocol of the implementation".to_owned());
        }
        if self.url.scheme() != "amqp" {
            return Err("TLS connections cannot be observed. Use an amqp:// URL".to_owned());
        }
        Ok(())
    }
}

/// Returns the command of the administrator: lockkeeper's driver for this protocol, unless
/// another one is named.
pub fn administrator(named: Option<String>, protocol: Rules) -> String {
    named.unwrap_or_else(|| match protocol {
        Rules::AmqpLocksPython => "lockkeeper drive --profile AmqpLocksPython".to_owned(),
        // Not started.
        Rules::None => "lockkeeper drive".to_owned(),
        protocol => format!("lockkeeper drive --protocol {protocol:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_administrator_follows_the_protocol_unless_it_is_named() {
        let ours = |protocol| administrator(None, protocol);
        assert_eq!(ours(Rules::Token), "lockkeeper drive --protocol Token");
        assert_eq!(ours(Rules::AmqpLocksPython), "lockkeeper drive --profile AmqpLocksPython");
        assert_eq!(administrator(Some("mine".to_owned()), Rules::Token), "mine");
    }
}
