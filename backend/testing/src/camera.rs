//! Test cameras on 127.0.0.1: servers that stream a drawn film in a loop.
//!
//! A [`Recording`] is a film that ffmpeg has encoded once. [`RtspCamera`], [`MjpegCamera`] and
//! [`HlsCamera`] send it again and again, with times that go on. Each frame shows its number in the
//! film, which [`read_number`](crate::film::read_number) reads.
//!
//! A camera listens on a free port, until it is dropped. It runs on threads of this module, so
//! tests with and without an asynchronous runtime can use it. Its methods unplug it, pause it, or
//! make it misbehave while clients are connected. [`Server::counts`] says what clients did so far,
//! and [`Server::wait_for`] waits until they have done something.

mod authentication;
mod counts;
mod hls;
mod message;
mod mjpeg;
mod peer;
mod playback;
mod recording;
mod rtp;
mod rtsp;
mod server;

pub use authentication::{Authentication, Scheme};
pub use counts::Counts;
pub use hls::{HlsCamera, HlsFault, HlsOptions, SegmentFormat};
pub use mjpeg::{MjpegCamera, MjpegFault, MjpegOptions};
pub use playback::Pace;
pub use recording::Recording;
pub use rtp::Garbage;
pub use rtsp::{DescribeFault, RtspCamera, RtspOptions};
pub use server::Server;
