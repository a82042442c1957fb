//! What connections to servers share, whatever their protocol: the clock that measures a
//! lock's validity, TLS, and limits of connections and of this process. Knows no protocol.

pub mod clock;
pub mod opening;
pub mod process_limit;
pub mod tls;
