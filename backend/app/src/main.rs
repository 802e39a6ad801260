//! The `facecrawl` binary.
use app::cli::{Cli, run_and_exit};
use app::config::restart_with_library_settings;
use clap::Parser;
use listenfd::ListenFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The child that decodes videos. It restricts itself and becomes ffmpeg, so it must not start
    // threads or read the configuration.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == video::sandbox::ARGUMENT) {
        return video::sandbox::run_child(arguments);
    }
    // For invalid arguments, clap prints its message and exits with status 2.
    let cli = Cli::parse();
    restart_with_library_settings();
    // This call must run before other threads start, because it removes the variables of a service
    // manager's sockets from the environment.
    let sockets = ListenFd::from_env();
    run_and_exit(cli, sockets)
}
