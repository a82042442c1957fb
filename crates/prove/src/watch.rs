//! Records an application that connects to the proxy by itself. Only the broker's side is known:
//! who owned which slot, and who changed the lock. See `run` for processes that answer requests.

use std::net::SocketAddr;

use lockkeeper_plan::naming::NameError;
use url::Url;

use crate::history::{Header, History, Rules, VERSION};
use crate::straw;
use crate::wire::{Proxy, Recorder};

/// What to watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The address to which the application connects instead of the broker. Port 0: any.
    pub listen: SocketAddr,
    /// The broker. The application's own user name and password pass through.
    pub url: Url,
    /// The protocol of the application. Not [`Rules::None`].
    pub rules: Rules,
    /// The name of the lock.
    pub lock: String,
}

/// A watch that could not begin.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The URL of the broker names no host.
    #[error("the URL of the broker has no host: use amqp://user:password@host:port/vhost")]
    Url,
    /// Without a broker there is nothing to watch.
    #[error("protocol None has no broker to watch. Use the protocol of the application")]
    Protocol,
    /// The lock cannot have this name.
    #[error("the lock's name is invalid: {0}")]
    Name(#[from] NameError),
    /// The slots could not be counted.
    #[error("the slots of the lock could not be counted: {0}")]
    Count(Box<lapin::Error>),
    /// The address could not be opened.
    #[error("{0} cannot be opened: {1}")]
    Listen(SocketAddr, std::io::Error),
}

/// A watch under way. Dropping it closes every connection through it.
pub struct Watch {
    header: Header,
    proxy: Proxy,
    recorder: Recorder,
}

impl Watch {
    /// Counts the slots of the lock, and then passes connections to the broker.
    ///
    /// # Errors
    ///
    /// [`WatchError`].
    pub async fn start(options: &WatchOptions) -> Result<Self, WatchError> {
        let mut header = Header {
            version: VERSION,
            implementation: format!("an application at {}", options.listen),
            broker: String::new(),
            protocol: options.rules,
            lock: options.lock.clone(),
            slots: 0,
            seed: 0,
            heartbeat_ms: 0,
            played: None,
        };
        let lock = header.lock_name()?.ok_or(WatchError::Protocol)?;
        let counted = straw::count(options.url.as_str(), lock).await;
        let counted = counted.map_err(|error| WatchError::Count(Box::new(error)))?;
        header.slots = counted.unwrap_or_default();
        let host = options.url.host_str().ok_or(WatchError::Url)?.to_owned();
        let address = (host, options.url.port().unwrap_or(5672));
        let recorder = Recorder::new();
        let observer = recorder.observer_of_connections();
        let proxy = Proxy::listening(options.listen, address, observer).await;
        let proxy = proxy.map_err(|error| WatchError::Listen(options.listen, error))?;
        Ok(Self { header, proxy, recorder })
    }

    /// Returns the port to which the application connects.
    pub fn port(&self) -> u16 {
        self.proxy.port()
    }

    /// Returns the number of slots at the start. 0 if AMQP does not show it.
    pub fn slots(&self) -> u32 {
        self.header.slots
    }

    /// Ends the watch. Open connections are closed.
    pub fn finish(self) -> History {
        let Self { mut header, proxy, recorder } = self;
        // What follows would be the effects of the end.
        let events = recorder.finish();
        drop(proxy);
        header.broker = recorder.broker().unwrap_or_default();
        let heartbeat = recorder.heartbeat().as_millis();
        header.heartbeat_ms = u64::try_from(heartbeat).unwrap_or(u64::MAX);
        History { header, events }
    }
}
