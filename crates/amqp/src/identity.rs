//! A broker's description of itself when a connection starts. lapin does not expose it,
//! so a separate connection reads it and closes before the login.

use std::io;

use lapin::protocol::{AMQPClass, connection::AMQPMethod, parse_class};
use lapin::types::AMQPValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::endpoint::Endpoint;
use super::incoming::Closes;
use super::stream::Dialer;
use crate::error::AmqpError;

/// What a broker sends first on a connection. Any server can claim the same, in any words.
pub struct Greeting {
    /// The cluster's name.
    pub cluster_name: String,
    /// `RabbitMQ`, or another product that implements AMQP 0-9-1.
    pub product: String,
    /// The version of the node that answered.
    pub version: String,
    /// Whether it announces publisher confirms.
    pub confirms: bool,
}

/// Reads the greeting over AMQP. Cancel safe.
pub async fn greet(endpoint: &Endpoint) -> Result<Greeting, AmqpError> {
    let limit = endpoint.connect_timeout;
    let dialer = Dialer::new(endpoint, Closes::default())?;
    let payload = tokio::time::timeout(limit, async {
        let mut stream = dialer.dial(drop).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        // Frame: type, channel, size, payload, frame-end octet. The stream checks it.
        let (_kind, _channel) = (stream.read_u8().await?, stream.read_u16().await?);
        let mut payload = vec![0; stream.read_u32().await? as usize];
        stream.read_exact(&mut payload).await?;
        io::Result::Ok(payload)
    })
    .await
    .map_err(|_| endpoint.no_answer(limit))?
    .map_err(|error| endpoint.explained(AmqpError::reaching(&error, &endpoint.address)))?;
    let Ok((_, AMQPClass::Connection(AMQPMethod::Start(start)))) = parse_class(payload.as_slice())
    else {
        return Err(AmqpError::Protocol { why: "its first frame isn't connection.start".into() });
    };
    let property = |key: &str| match start.server_properties.inner().get(key) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        _ => String::new(),
    };
    let confirms = match start.server_properties.inner().get("capabilities") {
        Some(AMQPValue::FieldTable(offered)) => {
            offered.inner().get("publisher_confirms") == Some(&AMQPValue::Boolean(true))
        }
        _ => false,
    };
    Ok(Greeting {
        cluster_name: property("cluster_name"),
        product: property("product"),
        version: property("version"),
        confirms,
    })
}
