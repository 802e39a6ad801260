//! Accepting connections until the process is asked to stop.
use axum::Router;
use axum::serve::ListenerExt;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Serves until `shutdown` fires, then answers what was accepted, for at most `drain`. Give the same token to `AppState`, so that
/// event streams end too.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    drain: Duration,
) -> std::io::Result<()> {
    // Answers are small and whole: waiting for more to send only delays them.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
    });
    let deadline = async {
        shutdown.cancelled().await;
        tokio::time::sleep(drain).await;
    };
    let server = axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    tokio::select! {
        result = async { server.await } => result,
        () = deadline => {
            tracing::warn!(?drain, "some requests were not answered in time and are cut off");
            Ok(())
        }
    }
}
