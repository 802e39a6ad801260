//! Handles SIGTERM and SIGINT: the first signal starts the shutdown, the second ends the process
//! immediately. Also contains the function that ends the process after a command.
use std::io::Write;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Signal numbers (POSIX), for the exit status 128 + n that shells expect.
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// Returns a token that fires with the first signal.
pub fn listen_for_signals() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let fired = token.clone();
    tokio::spawn(async move {
        let first = either(&mut interrupt, &mut terminate).await;
        tracing::info!(signal = name(first), "shutting down; a second signal exits immediately");
        fired.cancel();
        let second = either(&mut interrupt, &mut terminate).await;
        tracing::warn!(signal = name(second), "second signal, exiting immediately");
        // Without the flush of `exit_process`, because another thread may hold stdout and wait for
        // its reader.
        signal_hook::low_level::exit(128 + second);
    });
    Ok(token)
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) -> i32 {
    tokio::select! {
        _ = interrupt.recv() => SIGINT,
        _ = terminate.recv() => SIGTERM,
    }
}

fn name(signal: i32) -> &'static str {
    if signal == SIGINT { "SIGINT" } else { "SIGTERM" }
}

/// Ends the process with this exit status, after writing the output that stdout has buffered.
///
/// Destructors of C++ libraries do not run. ONNX Runtime has static objects, and another thread may
/// still load or run a model when the command has its result: a command that fails early does not
/// wait for the models. A thread that uses an object after its destructor crashes the process, and
/// the caller sees a signal instead of the exit status.
pub fn exit_process(status: i32) -> ! {
    // If flushing fails, no program reads the output.
    let _unread = std::io::stdout().flush();
    signal_hook::low_level::exit(status)
}
