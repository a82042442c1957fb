//! The address of a broker as its connections take it, from the settings of a client or an
//! administrator. See `lockkeeper_amqp::endpoint` for its use.

use std::time::Duration;

use lockkeeper_amqp::endpoint::{Endpoint, Found, MakeTls};
use lockkeeper_amqp::features::Probe;
use lockkeeper_net::opening::Gate;
use lockkeeper_net::tls::client_config;
use lockkeeper_plan::connection::{self, RabbitmqSettings};

/// How the connections to a broker are opened and used.
pub struct Limits {
    /// Time limit of TCP and the whole handshake.
    pub connect_timeout: Duration,
    /// Time limit of each operation on the open connection.
    pub operation_timeout: Duration,
    /// In seconds. `None`: the broker's proposal.
    pub heartbeat: Option<u16>,
    /// Limits of the connections that are being opened.
    pub gate: Gate,
}

/// Returns the address of the broker of these settings. Its connections have this name.
pub fn endpoint(settings: &RabbitmqSettings, client_name: String, limits: Limits) -> Endpoint {
    let tls = settings.tls.clone();
    let make_tls =
        tls.map(|tls| -> MakeTls { Box::new(move || client_config(Some(tls.expose()))) });
    let Limits { connect_timeout, operation_timeout, heartbeat, gate } = limits;
    Endpoint {
        host: settings.host.clone(),
        port: settings.port,
        address: settings.address(),
        username: settings.username.clone(),
        password: settings.password.clone(),
        vhost: settings.vhost.clone(),
        make_tls,
        probe: settings.probe.map(probe),
        client_name,
        connect_timeout,
        operation_timeout,
        heartbeat,
        gate,
        found: Found::default(),
    }
}

fn probe(chosen: connection::Probe) -> Probe {
    match chosen {
        connection::Probe::Confirm => Probe::Confirm,
        connection::Probe::Tx => Probe::Tx,
        connection::Probe::Declare => Probe::Declare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_shown_in_brackets() {
        let settings = RabbitmqSettings::from_urls("amqp://u:p@[::1]:5673/jobs", None).unwrap();
        let limits = Limits {
            connect_timeout: Duration::from_secs(1),
            operation_timeout: Duration::from_secs(1),
            heartbeat: None,
            gate: Gate::default(),
        };
        let endpoint = endpoint(&settings, "test".to_owned(), limits);
        assert_eq!((endpoint.host.as_str(), endpoint.port), ("::1", 5673));
        assert_eq!(endpoint.address, "[::1]:5673");
    }
}
