//! Listening of a camera: accepts connections, can be unplugged, and counts connections and players
//! that are open at one time.
use super::counts::{Counter, Counts};
use crate::ports::{ReservedPort, bind};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

/// Size of the buffer for bytes that a client has not received yet. The default would hide for a
/// minute that a client does not read.
const SEND_BUFFER: u32 = 65_536;

/// The threads of all cameras. They are separate from those of a test, which may block.
pub(super) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).thread_name("camera").enable_all().build().expect("threads can be started")
});

type Serve = dyn Fn(TcpStream, Arc<Connection>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// The part that all kinds of cameras share.
pub struct Server {
    port: ReservedPort,
    hub: Arc<Hub>,
    /// `None` while the camera is unplugged.
    listening: Mutex<Option<Listening>>,
}

struct Hub {
    serve: Box<Serve>,
    counter: Arc<Counter>,
    open: Mutex<Vec<Weak<Connection>>>,
}

struct Listening {
    stop: oneshot::Sender<()>,
    stopped: std::sync::mpsc::Receiver<()>,
}

impl Server {
    /// Listens on a port, or on a free one if `port` is 0. `serve` handles each connection. Fails
    /// if the port is in use.
    pub(super) fn start<F>(
        port: u16,
        counter: Arc<Counter>,
        serve: impl Fn(TcpStream, Arc<Connection>) -> F + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let serve: Box<Serve> = Box::new(move |stream, connection| Box::pin(serve(stream, connection)));
        let hub = Arc::new(Hub { serve, counter, open: Mutex::default() });
        let server = Self { port: ReservedPort::at(port)?, hub, listening: Mutex::default() };
        server.listen()?;
        Ok(server)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Closes all connections and refuses new ones, until [`plug_in`](Self::plug_in). They are
    /// closed when this returns.
    pub fn unplug(&self) {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Listening { stop, stopped }) = listening.take() {
            let _ended = stop.send(());
            // This also returns if the task is gone.
            let _ended = stopped.recv();
        }
    }

    /// Accepts connections again, on the same port. Panics if this port cannot be used.
    pub fn plug_in(&self) {
        self.listen().expect("the camera can listen on its port again");
    }

    /// Returns what clients did so far.
    pub fn counts(&self) -> Counts {
        self.hub.counter.get()
    }

    /// Returns a receiver of each change of the counts.
    pub fn watch(&self) -> watch::Receiver<Counts> {
        self.hub.counter.watch()
    }

    /// Waits until the counts meet a condition, and returns the counts. Panics after
    /// [`MAX_WAIT`](crate::MAX_WAIT).
    pub async fn wait_for(&self, condition: impl FnMut(&Counts) -> bool) -> Counts {
        self.hub.counter.wait_for(condition).await
    }

    fn listen(&self) -> io::Result<()> {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        if listening.is_some() {
            return Ok(());
        }
        let _context = RUNTIME.enter();
        let socket = bind(self.port.address())?;
        // Accepted connections inherit the size.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        let listener = socket.listen(128)?;
        let (stop, must_stop) = oneshot::channel();
        let (is_stopped, stopped) = std::sync::mpsc::channel();
        let hub = self.hub.clone();
        RUNTIME.spawn(async move {
            accept(listener, hub, must_stop).await;
            let _unplugged = is_stopped.send(());
        });
        *listening = Some(Listening { stop, stopped });
        Ok(())
    }
}

/// Serves connections until `stop`, and then closes all of them. Dropping the sender also stops
/// it.
async fn accept(listener: TcpListener, hub: Arc<Hub>, mut stop: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = &mut stop => break,
            accepted = listener.accept() => accepted,
            // Finished tasks would otherwise stay in memory.
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else { continue };
        let _slower = stream.set_nodelay(true);
        if let Ok(connection) = hub.open_connection(&stream) {
            connections.spawn((hub.serve)(stream, connection));
        }
    }
    drop(listener);
    connections.shutdown().await;
}

impl Hub {
    fn open_connection(self: &Arc<Self>, stream: &TcpStream) -> io::Result<Arc<Connection>> {
        use std::os::fd::AsFd;
        let peek = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?);
        let connection =
            Arc::new(Connection { peek, is_playing: AtomicBool::new(false), hub: Arc::downgrade(self) });
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| connection.strong_count() > 0);
        open.push(Arc::downgrade(&connection));
        let at_once = count(&open, |connection| connection.is_held());
        self.counter.change(|counts| {
            counts.connections += 1;
            counts.open_connections += 1;
            counts.most_connections_at_once = counts.most_connections_at_once.max(at_once);
        });
        Ok(connection)
    }
}

/// How often connections are counted again that seem to be open at one time, and the pause before.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: std::time::Duration = std::time::Duration::from_millis(2);

/// Returns how many connections meet a condition at the same time. On a busy machine, the kernel
/// can deliver the end of a connection after the start of the next one, so it looks several times.
fn count(open: &[Weak<Connection>], condition: impl Fn(&Connection) -> bool) -> u64 {
    let count_once =
        || open.iter().filter_map(Weak::upgrade).filter(|connection| condition(connection)).count() as u64;
    for _ in 0..LOOKS {
        if count_once() <= 1 {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    count_once()
}

/// An open connection. It is open until this is dropped together with its stream.
pub(super) struct Connection {
    /// The same connection, for looking at bytes that the task has not read yet.
    peek: std::net::TcpStream,
    is_playing: AtomicBool,
    hub: Weak<Hub>,
}

impl Connection {
    /// Notes that this connection gets frames from now on.
    pub(super) fn begin_playing(&self) {
        let Some(hub) = self.hub.upgrade() else { return };
        self.is_playing.store(true, Ordering::Relaxed);
        let open = hub.open.lock().unwrap_or_else(PoisonError::into_inner);
        let at_once =
            count(&open, |connection| connection.is_playing.load(Ordering::Relaxed) && connection.is_held());
        hub.counter.change(|counts| {
            counts.plays += 1;
            counts.most_players_at_once = counts.most_players_at_once.max(at_once);
        });
    }

    pub(super) fn end_playing(&self) {
        self.is_playing.store(false, Ordering::Relaxed);
    }

    /// Returns whether the client still wants the connection. The kernel knows the end of a
    /// connection before its task does. Without this check, a client that connects again would
    /// count twice.
    fn is_held(&self) -> bool {
        let mut unread = [0; 4096];
        match self.peek.peek(&mut unread) {
            Ok(0) => false,
            Ok(length) => !unread[..length].windows(8).any(|word| word == b"TEARDOWN"),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.counter.change(|counts| counts.open_connections -= 1);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.unplug();
    }
}
