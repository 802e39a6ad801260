//! Ports that tests keep for themselves.
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

/// Reserves a port of 127.0.0.1 for one server, even while the server is not running. Connections
/// are refused whenever the server does not listen. Dropping the value releases the port.
///
/// The port is bound with `SO_REUSEADDR`. A server that also sets this option, as nearly all do,
/// can listen on it. A request for any free port (port 0) never gets it. Tests that need no server,
/// only a refused connection, use port 9, which the system never assigns.
pub struct ReservedPort(TcpSocket);

impl ReservedPort {
    /// Reserves any free port. Panics if there is none.
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("SO_REUSEADDR can be set");
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
