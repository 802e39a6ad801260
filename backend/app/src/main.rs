//! The `facecrawl` binary.
use app::cli::{Cli, main_of};
use app::config::disable_library_telemetry;
use clap::Parser;
use listenfd::ListenFd;

fn main() {
    // For invalid arguments, clap prints its message and exits with status 2.
    let cli = Cli::parse();
    disable_library_telemetry();
    // This call must run before other threads start, because it removes the variables of a service
    // manager's sockets from the environment.
    let inherited = ListenFd::from_env();
    main_of(cli, inherited)
}
