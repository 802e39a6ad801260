//! What the clients of a camera did so far.
use tokio::sync::watch;

/// Counts since the start of a camera. They also count what happened before it was unplugged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that are open now. A connection that its client has closed may count for a
    /// moment longer.
    pub open_connections: u64,
    /// Largest number of connections that clients held open at one time.
    pub most_connections_at_once: u64,
    /// Requests of all methods.
    pub requests: u64,
    /// Requests that were answered with status 401.
    pub refused_requests: u64,
    /// DESCRIBE requests of RTSP with the right password.
    pub describes: u64,
    /// Playlists that were sent.
    pub playlists: u64,
    /// Segments that were sent.
    pub segments: u64,
    /// PLAY requests of RTSP, or requests for a stream of JPEG images.
    pub plays: u64,
    /// Largest number of connections that got frames at one time.
    pub most_players_at_once: u64,
    /// Frames that were sent, to all players. Garbage instead of a frame counts as a frame.
    pub frames_sent: u64,
    /// Frames that were left out because a client read too slowly.
    pub frames_dropped: u64,
    /// Number of the last frame that was sent, as drawn in it.
    pub last_frame_number: Option<u32>,
    /// Bytes of answers and frames that were sent.
    pub bytes_sent: u64,
}

/// The counts of a camera, and the way to wait for them.
#[derive(Debug, Default)]
pub(super) struct Counter(watch::Sender<Counts>);

impl Counter {
    pub(super) fn change(&self, change: impl FnOnce(&mut Counts)) {
        self.0.send_modify(change);
    }

    pub(super) fn get(&self) -> Counts {
        *self.0.borrow()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Counts> {
        self.0.subscribe()
    }

    /// Waits until `condition` holds, and returns the counts at this time. Panics after
    /// [`MAX_WAIT`](crate::MAX_WAIT).
    pub(super) async fn wait_for(&self, condition: impl FnMut(&Counts) -> bool) -> Counts {
        let mut receiver = self.0.subscribe();
        match tokio::time::timeout(crate::MAX_WAIT, receiver.wait_for(condition)).await {
            Ok(Ok(counts)) => *counts,
            Ok(Err(_)) => unreachable!("the sender is in this object"),
            Err(_) => panic!("the clients have not done what the test waits for: {:?}", self.get()),
        }
    }
}
