//! Ports that tests keep for themselves.
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

/// A port of 127.0.0.1 for one server, also while that server is stopped or not yet started. It
/// refuses connections until the server listens.
///
/// The port is bound with `SO_REUSEADDR`. A server that also sets this option, as nearly all do,
/// can listen on it. A request for any free port (port 0) never gets it.
pub struct ReservedPort(TcpSocket);

impl ReservedPort {
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option of every socket");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        Self(socket)
    }

    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("a bound socket")
    }

    pub fn number(&self) -> u16 {
        self.address().port()
    }
}

impl Default for ReservedPort {
    fn default() -> Self {
        Self::new()
    }
}
