//! A connection to a broker (MQTT 3.1.1) that publishes messages and waits until the broker has
//! acknowledged all of them. It subscribes to nothing.
use crate::watch::mqtt::config::{Authorities, BrokerConfig};
use futures::{SinkExt, StreamExt};
use rumqttc::mqttbytes::v4::{Codec, Connect, ConnectReturnCode, LastWill, Login, Packet, Publish};
use rumqttc::mqttbytes::{Error as CodecError, QoS};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::Verifier;
use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::codec::Framed;

/// Time limit of a connection, including the resolution of the name, TLS and the response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of the acknowledgements of some messages.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without a message after which the connection is checked. A broker closes a connection that
/// was silent for one and a half times as long.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Number of messages that wait for their acknowledgement at a time.
const WINDOW: usize = 32;
/// Maximum size of a packet that the broker sends. It sends only acknowledgements.
const MAX_INCOMING: usize = 4 << 10;
/// Maximum size of a packet that is sent, in bytes.
pub(super) const MAX_OUTGOING: usize = 64 << 10;

/// A message to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) topic: String,
    /// An empty payload removes a retained message.
    pub(super) payload: String,
    /// Whether the broker keeps the message for later subscribers.
    pub(super) is_retained: bool,
}

/// Why a broker cannot be used. No text contains the password.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokerError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error(
        "the TLS connection failed: {0}; if your own authority signed the certificate of the broker, set MQTT_CA to its file"
    )]
    Tls(io::Error),
    #[error("failed to configure TLS: {0}")]
    TlsConfig(String),
    #[error("the broker refused the user or the password (MQTT_USER, MQTT_PASSWORD)")]
    Credentials,
    #[error("the broker refused the connection: {0}")]
    Refused(&'static str),
    #[error("the broker did not respond in time")]
    Timeout,
    #[error("the broker closed the connection")]
    Closed,
    #[error("the connection failed: {0}")]
    Io(io::Error),
    #[error("the broker sent an invalid or unexpected packet")]
    Protocol,
}

impl From<CodecError> for BrokerError {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Io(error) => Self::Io(error),
            _ => Self::Protocol,
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An open connection.
pub(super) struct Broker {
    framed: Framed<Box<dyn Stream>, Codec>,
    /// The number of the last message.
    last_id: u16,
    next_ping: Instant,
    /// Whether the response to the last ping is missing.
    awaits_ping: bool,
}

impl Broker {
    /// Connects to a broker. The broker closes an older connection with the same `client_id`. If
    /// this connection breaks, it publishes `will`.
    ///
    /// # Errors
    /// Fails if the broker cannot be reached, refuses the credentials or does not respond in time.
    pub(super) async fn connect(
        config: &BrokerConfig,
        client_id: String,
        will: Option<Message>,
    ) -> Result<Self, BrokerError> {
        let connect = async {
            let mut framed = open(config).await?;
            framed.send(Packet::Connect(connect_packet(config, client_id, will))).await?;
            match framed.next().await {
                Some(Ok(Packet::ConnAck(response))) => check_response(response.code)?,
                Some(Ok(_)) => return Err(BrokerError::Protocol),
                Some(Err(error)) => return Err(error.into()),
                None => return Err(BrokerError::Closed),
            }
            let next_ping = Instant::now() + KEEP_ALIVE;
            Ok(Self { framed, last_id: 0, next_ping, awaits_ping: false })
        };
        timeout(CONNECT_TIMEOUT, connect).await.map_err(|_| BrokerError::Timeout)?
    }

    /// Publishes messages in this order, and waits until the broker has acknowledged all of them.
    ///
    /// # Errors
    /// After an error, the broker may have received some of the messages, and the connection must
    /// not be used again.
    pub(super) async fn publish(&mut self, messages: Vec<Message>) -> Result<(), BrokerError> {
        let mut messages = messages.into_iter();
        loop {
            let window: Vec<Message> = messages.by_ref().take(WINDOW).collect();
            if window.is_empty() {
                return Ok(());
            }
            timeout(ACK_TIMEOUT, self.publish_window(window)).await.map_err(|_| BrokerError::Timeout)??;
        }
    }

    async fn publish_window(&mut self, messages: Vec<Message>) -> Result<(), BrokerError> {
        let mut unacknowledged = HashSet::new();
        for message in messages {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            unacknowledged.insert(self.last_id);
            let mut publish = Publish::new(message.topic, QoS::AtLeastOnce, message.payload);
            publish.pkid = self.last_id;
            publish.retain = message.is_retained;
            self.framed.feed(Packet::Publish(publish)).await?;
        }
        self.framed.flush().await?;
        self.next_ping = Instant::now() + KEEP_ALIVE;
        while !unacknowledged.is_empty() {
            if let Some(id) = self.receive().await? {
                unacknowledged.remove(&id);
            }
        }
        Ok(())
    }

    /// Keeps an idle connection open, until it fails. The future can be dropped.
    pub(super) async fn keep_alive(&mut self) -> Result<Infallible, BrokerError> {
        loop {
            let next_ping = self.next_ping;
            tokio::select! {
                received = self.receive() => drop(received?),
                () = sleep_until(next_ping) => {
                    if self.awaits_ping {
                        return Err(BrokerError::Timeout);
                    }
                    (self.awaits_ping, self.next_ping) = (true, Instant::now() + KEEP_ALIVE);
                    self.framed.send(Packet::PingReq).await?;
                }
            }
        }
    }

    /// Waits for a packet. Returns the number of the message that it acknowledges, if it does.
    async fn receive(&mut self) -> Result<Option<u16>, BrokerError> {
        match self.framed.next().await {
            Some(Ok(Packet::PubAck(ack))) => Ok(Some(ack.pkid)),
            Some(Ok(Packet::PingResp)) => {
                self.awaits_ping = false;
                Ok(None)
            }
            Some(Ok(_)) => Err(BrokerError::Protocol),
            Some(Err(error)) => Err(error.into()),
            None => Err(BrokerError::Closed),
        }
    }
}

async fn open(config: &BrokerConfig) -> Result<Framed<Box<dyn Stream>, Codec>, BrokerError> {
    let address = &config.address;
    let tcp =
        TcpStream::connect((address.host.as_str(), address.port)).await.map_err(BrokerError::Connect)?;
    tcp.set_nodelay(true).map_err(BrokerError::Connect)?;
    let stream: Box<dyn Stream> = if address.has_tls {
        let name = ServerName::try_from(address.host.clone())
            .map_err(|error| BrokerError::TlsConfig(error.to_string()))?;
        let connector = tls_connector(config.authorities.clone()).await?;
        Box::new(connector.connect(name, tcp).await.map_err(BrokerError::Tls)?)
    } else {
        Box::new(tcp)
    };
    Ok(Framed::new(stream, Codec { max_incoming_size: MAX_INCOMING, max_outgoing_size: MAX_OUTGOING }))
}

/// Returns a connector that trusts the authorities of the system and `authorities`.
async fn tls_connector(authorities: Authorities) -> Result<TlsConnector, BrokerError> {
    let build = move || -> Result<TlsConnector, rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Verifier::new_with_extra_roots(authorities.certificates(), provider.clone())?;
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            // The verifier checks the certificate with the authorities above.
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    };
    // It reads the certificates of the system from files.
    let built = tokio::task::spawn_blocking(build).await;
    built
        .map_err(|error| BrokerError::TlsConfig(error.to_string()))?
        .map_err(|error| BrokerError::TlsConfig(error.to_string()))
}

fn connect_packet(config: &BrokerConfig, client_id: String, will: Option<Message>) -> Connect {
    let mut connect = Connect::new(client_id);
    connect.keep_alive = KEEP_ALIVE.as_secs() as u16;
    connect.last_will =
        will.map(|will| LastWill::new(will.topic, will.payload, QoS::AtLeastOnce, will.is_retained));
    connect.login = config.user.as_ref().map(|user| Login {
        username: user.clone(),
        password: config.password.as_ref().map(|password| password.reveal().to_owned()).unwrap_or_default(),
    });
    connect
}

fn check_response(code: ConnectReturnCode) -> Result<(), BrokerError> {
    match code {
        ConnectReturnCode::Success => Ok(()),
        ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized => {
            Err(BrokerError::Credentials)
        }
        ConnectReturnCode::RefusedProtocolVersion => {
            Err(BrokerError::Refused("it does not support MQTT 3.1.1"))
        }
        ConnectReturnCode::BadClientId => Err(BrokerError::Refused("it does not allow the client id")),
        ConnectReturnCode::ServiceUnavailable => Err(BrokerError::Refused("it is unavailable")),
    }
}
