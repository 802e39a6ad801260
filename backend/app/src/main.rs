//! The `facecrawl` binary.
use app::cli::{Cli, run};
use clap::Parser;
use listenfd::ListenFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Wrong usage ends here, with clap's message and status 2.
    let cli = Cli::parse();
    // Before there are other threads: it takes the variables of a service manager's sockets out of the environment.
    let inherited = ListenFd::from_env();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let exit = runtime.block_on(run(cli, inherited));
    // A blocking call that nobody waits for any more must not hold up the exit.
    runtime.shutdown_background();
    ExitCode::from(exit.code())
}
