//! The `facecrawl` binary.
use app::cli::{Cli, main_of};
use clap::Parser;
use listenfd::ListenFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Wrong usage ends here, with clap's message and status 2.
    let cli = Cli::parse();
    // Before there are other threads: it takes the variables of a service manager's sockets out of the environment.
    let inherited = ListenFd::from_env();
    main_of(cli, inherited)
}
