//! Which broker answers at an address, from what it says of itself when a
//! connection starts. lapin keeps that to itself, so it is asked for over a
//! connection of its own that ends before the login.

use std::io;

use lapin::protocol::{AMQPClass, connection::AMQPMethod, parse_class};
use lapin::types::AMQPValue;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::broker::Broker;
use super::connect::Endpoint;
use super::error::BrokerError;
use crate::plan::clean_text;

/// Longest first frame accepted; RabbitMQ's is about 500 bytes.
const MAX_FRAME: u32 = 65_536;

/// Who a broker is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BrokerIdentity {
    /// The cluster's own id: the same on every node, different in every other
    /// cluster. Only the management API tells it, and only to an administrator.
    pub cluster_id: Option<String>,
    /// The cluster's name. A person may choose it, so two clusters may have the
    /// same; where nobody did, each node of a cluster makes up its own.
    pub cluster_name: String,
    /// `RabbitMQ`, or another product that speaks AMQP 0-9-1.
    pub product: String,
    /// The version of the node that answered.
    pub version: String,
}

impl BrokerIdentity {
    /// Whether both are the same cluster: by id where both are known, else by
    /// name, which may be wrong either way.
    #[must_use]
    pub fn is_same_cluster(&self, other: &Self) -> bool {
        match (&self.cluster_id, &other.cluster_id) {
            (Some(id), Some(others)) => id == others,
            _ => self.cluster_name == other.cluster_name,
        }
    }
}

impl Broker {
    /// Whether both are the same virtual host of the same cluster, at whatever address.
    /// Connects to both, if need be. Cancel safe.
    pub async fn is_same_as(&self, other: &Self) -> Result<bool, BrokerError> {
        let [ours, theirs] = [self, other].map(|broker| &broker.inner().settings().vhost);
        if ours != theirs {
            return Ok(false);
        }
        let (ours, theirs) = futures::try_join!(self.identity(), other.identity())?;
        Ok(ours.is_same_cluster(&theirs))
    }
}

/// Asks over AMQP; the cluster's id is left open.
pub(super) async fn ask_identity(endpoint: &Endpoint) -> Result<BrokerIdentity, BrokerError> {
    let limit = endpoint.connect_timeout;
    let tls = endpoint.tls()?.map(TlsConnector::from);
    let payload = tokio::time::timeout(limit, async {
        let host = endpoint.settings.host.as_str();
        let stream = TcpStream::connect((host, endpoint.settings.port)).await?;
        match tls {
            None => first_frame(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                first_frame(tls.connect(name, stream).await?).await
            }
        }
    })
    .await
    .map_err(|_| BrokerError::Unreachable {
        endpoint: endpoint.address(),
        why: format!("no answer within {limit:?}"),
    })?
    .map_err(|error| BrokerError::reaching(&error, &endpoint.address()))?;
    let Ok((_, AMQPClass::Connection(AMQPMethod::Start(start)))) = parse_class(payload.as_slice())
    else {
        return Err(BrokerError::Protocol { why: "its first frame isn't connection.start".into() });
    };
    let property = |key: &str| match start.server_properties.inner().get(key) {
        Some(AMQPValue::LongString(text)) => clean_text(&text.to_string(), 256),
        _ => String::new(),
    };
    Ok(BrokerIdentity {
        cluster_id: None,
        cluster_name: property("cluster_name"),
        product: property("product"),
        version: property("version"),
    })
}

async fn first_frame(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<Vec<u8>> {
    stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
    // Frame: type, channel, size, payload, end mark.
    let (_kind, _channel) = (stream.read_u8().await?, stream.read_u16().await?);
    let size = stream.read_u32().await?;
    if size > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not an AMQP 0-9-1 broker"));
    }
    let mut payload = vec![0; size as usize];
    stream.read_exact(&mut payload).await?;
    Ok(payload)
}
