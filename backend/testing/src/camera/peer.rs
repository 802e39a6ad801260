//! A client of a camera: reads its requests and sends answers and frames, which are counted.
use super::counts::Counter;
use super::message::{Reader, Request, head};
use super::playback::Controls;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// All methods return `None` if the client has closed the connection.
pub(super) struct Peer {
    stream: TcpStream,
    reader: Reader,
    counter: Arc<Counter>,
}

impl Peer {
    pub(super) fn new(stream: TcpStream, counter: Arc<Counter>) -> Self {
        Self { stream, reader: Reader::default(), counter }
    }

    /// Waits for a request. Nothing is lost if the future is dropped early.
    pub(super) async fn request(&mut self) -> Option<Request> {
        self.reader.next(&mut self.stream).await
    }

    /// Waits until the client closes the connection. Keeps requests until then.
    pub(super) async fn closed(&mut self) {
        while self.reader.fill(&mut self.stream).await {}
    }

    pub(super) async fn wait_while_paused(&mut self, controls: &mut watch::Receiver<Controls>) -> Option<()> {
        tokio::select! {
            changed = controls.wait_for(|controls| !controls.is_paused) => changed.ok().map(|_| ()),
            () = self.closed() => None,
        }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).await.ok()?;
        self.counter.change(|counts| counts.bytes_sent += bytes.len() as u64);
        Some(())
    }

    /// Sends an answer of HTTP.
    pub(super) async fn respond(
        &mut self,
        status: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<()> {
        let length = body.len().to_string();
        let mut all = headers.to_vec();
        all.push(("Content-Length", &length));
        self.send(&[head(&format!("HTTP/1.1 {status}"), &all).as_bytes(), body].concat()).await
    }

    /// Sends `start`, and then bytes until the client closes the connection.
    pub(super) async fn send_endlessly(&mut self, start: &[u8]) -> Option<()> {
        self.send(start).await?;
        let chunk = [b'e'; 16_384];
        loop {
            self.send(&chunk).await?;
        }
    }
}
