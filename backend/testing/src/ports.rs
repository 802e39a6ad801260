//! Ports that tests keep for themselves.
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

/// Reserves a port of 127.0.0.1 for one server, even while the server is not running. Connections
/// are refused whenever the server does not listen. Dropping the value releases the port.
///
/// The port is bound with `SO_REUSEADDR`. A server that also sets this option, as nearly all do,
/// can listen on it. A request for any free port (port 0) never gets it. A test that only needs a
/// refused connection uses port 9, which the system never assigns.
pub struct ReservedPort(TcpSocket);

impl ReservedPort {
    /// Reserves any free port. Panics if there is none.
    pub fn new() -> Self {
        Self::at(0).expect("a free port")
    }

    /// Reserves a port, or any free one if `port` is 0. Fails if a server listens on the port.
    pub fn at(port: u16) -> io::Result<Self> {
        Ok(Self(bind((Ipv4Addr::LOCALHOST, port).into())?))
    }

    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("a bound socket")
    }

    pub fn number(&self) -> u16 {
        self.address().port()
    }
}

/// Returns a socket at an address that may be reserved. It does not listen yet.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

impl Default for ReservedPort {
    fn default() -> Self {
        Self::new()
    }
}
