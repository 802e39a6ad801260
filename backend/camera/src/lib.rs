//! Connects to network cameras and yields their compressed frames, with limits on time and memory.
//! This crate decodes nothing, stores nothing and reads no configuration.
//!
//! A camera is not trusted. Every connection goes to an address that the guard of the crate
//! `crawler` allows, and every length that a camera declares has a limit.

mod address;
mod connector;
mod error;
mod hls;
mod http;
mod matroska;
mod mjpeg;
mod multipart;
mod rtsp;
mod session;

pub use address::{Address, AddressError, Credentials, Kind};
pub use connector::Connector;
pub use error::CameraError;
pub use session::{Codec, Format, Session, Unit};

/// Maximum length of a compressed frame in bytes.
pub const MAX_FRAME_BYTES: usize = 8 << 20;
/// Maximum length of a segment of HTTP Live Streaming in bytes.
pub const MAX_SEGMENT_BYTES: usize = 32 << 20;
