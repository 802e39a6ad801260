//! Still pictures of the cameras that this process watches, on request. No picture is kept: the
//! next frame answers the request.
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::oneshot;
use uuid::Uuid;

/// Maximum number of requests for a camera that wait for its next frame.
const MAX_REQUESTS: usize = 16;

/// Why there is no picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StillError {
    #[error(
        "this process does not watch the camera; only a process of `facecrawl up` that is its holder can return a frame"
    )]
    NotHeld,
    #[error("too many requests wait for the next frame of the camera")]
    TooManyRequests,
    #[error("the camera sent no frame in time")]
    NoFrame,
}

/// The cameras of this process, with the requests for pictures. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stills(Arc<Mutex<HashMap<Uuid, Vec<oneshot::Sender<Bytes>>>>>);

/// Shows that this process watches a camera, until it is dropped.
#[derive(Debug)]
pub(super) struct HeldCamera {
    stills: Stills,
    stream: Uuid,
}

impl Stills {
    /// Waits for the next frame of a camera, and returns it as JPEG.
    ///
    /// # Errors
    /// Fails with [`StillError`]. The caller limits the time.
    pub async fn next(&self, stream: Uuid) -> Result<Bytes, StillError> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut cameras = self.0.lock();
            let requests = cameras.get_mut(&stream).ok_or(StillError::NotHeld)?;
            requests.retain(|request| !request.is_closed());
            if requests.len() >= MAX_REQUESTS {
                return Err(StillError::TooManyRequests);
            }
            requests.push(sender);
        }
        receiver.await.map_err(|_| StillError::NoFrame)
    }

    pub(super) fn hold(&self, stream: Uuid) -> HeldCamera {
        self.0.lock().insert(stream, Vec::new());
        HeldCamera { stills: self.clone(), stream }
    }
}

impl HeldCamera {
    /// Returns the requests that wait.
    pub(super) fn take_requests(&self) -> Vec<oneshot::Sender<Bytes>> {
        let mut cameras = self.stills.0.lock();
        cameras.get_mut(&self.stream).map(std::mem::take).unwrap_or_default()
    }
}

impl Drop for HeldCamera {
    fn drop(&mut self) {
        self.stills.0.lock().remove(&self.stream);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn next_frame_answers_requests() {
        let (stills, stream) = (Stills::default(), Uuid::now_v7());
        assert_eq!(stills.next(stream).await, Err(StillError::NotHeld));
        let camera = stills.hold(stream);
        let answer = async {
            loop {
                let requests = camera.take_requests();
                if requests.is_empty() {
                    tokio::task::yield_now().await;
                    continue;
                }
                requests.into_iter().for_each(|request| drop(request.send(Bytes::from_static(b"jpeg"))));
                return;
            }
        };
        let (picture, ()) = tokio::join!(stills.next(stream), answer);
        assert_eq!(picture.unwrap(), "jpeg");
        drop(camera);
        assert_eq!(stills.next(stream).await, Err(StillError::NotHeld));
    }
}
