//! Implements the command line. Results go to stdout; logs and progress go to stderr.

mod args;
mod backup;
mod bench;
mod config;
mod detect;
mod doctor;
mod enrol;
mod gpu;
mod index;
mod jobs;
mod keys;
mod maintenance;
mod models;
mod options;
mod scan;
mod shell;
mod stream;
mod up;
mod watch;

pub use args::{Cli, Command};

use crate::config::{ConfigErrors, LoadedConfig, Log, Otlp, Settings, load};
use crate::models::ModelError;
use crate::service::exit_process;
use crate::telemetry::Traces;
use crate::{output, profile, telemetry};
use anyhow::Context;
use clap::CommandFactory;
use listenfd::ListenFd;
use std::path::Path;

/// The result of a command, as its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: the command did everything that was requested.
    Success,
    /// 1: the command failed.
    Failure,
    /// 2: the arguments or the configuration are invalid.
    Usage,
    /// 3: a part of the input failed.
    Partial,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Partial => 3,
        }
    }

    /// Returns the result of a command, given the numbers of inputs that succeeded and failed.
    pub fn from_counts(succeeded: usize, failed: usize) -> Self {
        match (succeeded, failed) {
            (_, 0) => Self::Success,
            (0, _) => Self::Failure,
            _ => Self::Partial,
        }
    }
}

/// The arguments request something that is impossible.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Runs a command and ends the process with its exit status. `sockets` are those that a service
/// manager opened for this process.
///
/// The function is not `async`, because a future is compiled in the crate that polls it. Otherwise
/// the binary crate would compile all commands again.
pub fn run_and_exit(cli: Cli, sockets: ListenFd) -> ! {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start threads: {error}");
            exit_process(Exit::Failure.code().into())
        }
    };
    let exit = runtime.block_on(run(cli, sockets));
    // Blocking calls whose results are no longer needed do not delay the exit.
    exit_process(exit.code().into())
}

pub async fn run(cli: Cli, sockets: ListenFd) -> Exit {
    // reqwest, the crawler and the database use rustls. The cryptography provider must be installed
    // before any of them uses rustls.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let result = match load(&cli.global.sources()) {
        Ok(loaded) if cli.global.gpu_runtime => print_gpu_runtimes(cli.command.as_ref(), &loaded.settings),
        Ok(loaded) => start(cli, loaded, sockets).await,
        Err(errors) => match &cli.command {
            Some(Command::Doctor(args)) => doctor::report_invalid_configuration(&errors, args),
            _ => Err(errors.into()),
        },
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {}", message_with_causes(&error));
        exit_for_error(&error)
    })
}

/// Returns the message of an error and of its causes. Many errors of libraries contain the message
/// of their cause, and such a cause is not repeated.
fn message_with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Runs the command with logs, and with traces and the profile if they are requested.
async fn start(cli: Cli, loaded: LoadedConfig, sockets: ListenFd) -> anyhow::Result<Exit> {
    let profile_path = match &cli.command {
        Some(Command::Bench(args)) => args.profile(),
        _ => None,
    };
    let context = |path: &Path| format!("cannot write the profile {}", path.display());
    let profile = profile_path.map(|path| {
        let (layer, profile) = profile::create(path).with_context(|| context(path))?;
        Ok::<_, anyhow::Error>((layer, profile, path.to_owned()))
    });
    let (layer, profile) = match profile.transpose()? {
        Some((layer, profile, path)) => (Some(layer), Some((profile, path))),
        None => (None, None),
    };
    let otlp = Otlp::from_environment().map_err(ConfigErrors::from)?;
    let traces = otlp.map(|otlp| Traces::start(&otlp)).transpose()?;
    telemetry::init_logs(&log_settings(&cli, &loaded), layer, traces.as_ref())?;
    let result = dispatch(cli, loaded, sockets).await;
    if let Some(traces) = traces {
        traces.finish().await;
    }
    let finished = profile.map(|(profile, path)| profile.finish().with_context(|| context(&path)));
    let exit = result?;
    finished.transpose()?;
    Ok(exit)
}

async fn dispatch(cli: Cli, loaded: LoadedConfig, sockets: ListenFd) -> anyhow::Result<Exit> {
    let settings: &Settings = &loaded.settings;
    match cli.command.unwrap_or(Command::Up) {
        Command::Up => up::run(settings, up::Roles { serves_api: true, runs_worker: true }, sockets).await,
        Command::Serve => {
            up::run(settings, up::Roles { serves_api: true, runs_worker: false }, sockets).await
        }
        Command::Stream(args) => stream::run(settings, args).await,
        Command::Worker => {
            up::run(settings, up::Roles { serves_api: false, runs_worker: true }, sockets).await
        }
        Command::Scan(args) => scan::run(settings, args).await,
        Command::Enrol(args) => enrol::run(settings, args).await,
        Command::Detect(args) => detect::run(settings, args).await,
        Command::Bench(args) => bench::run(settings, args).await,
        Command::Models(args) => models::run(settings, args).await,
        Command::Doctor(args) => doctor::run(&loaded, &args).await,
        Command::Gpu(args) => gpu::run(settings, args).await,
        Command::Config(args) => config::run(&loaded, args),
        Command::Sweep(args) => maintenance::sweep(settings, args).await,
        Command::Backup(args) => backup::backup(settings, args).await,
        Command::Restore(args) => backup::restore(settings, args).await,
        Command::Migrate(args) => maintenance::migrate(settings, args).await,
        Command::Jobs(args) => jobs::run(settings, args).await,
        Command::Keys(args) => keys::run(settings, args).await,
        Command::Watch(args) => watch::run(settings, args).await,
        Command::Index(args) => index::run(settings, args).await,
        Command::Reembed(args) => maintenance::reembed(settings, args).await,
        Command::Completions(args) => shell::print_completions(&args, Cli::command()),
        Command::Man(args) => shell::write_manual(&args, Cli::command()),
        Command::Openapi => output::print_json(&server::openapi()).map(|()| Exit::Success),
        Command::Health(args) => up::health(settings, args).await,
    }
}

/// Returns the log settings. Commands that are not services log only warnings and the progress of
/// model downloads, unless `LOG_LEVEL` or `DEBUG` is set. Services keep the configured level.
fn log_settings(cli: &Cli, loaded: &LoadedConfig) -> Log {
    let mut log = loaded.settings.log.clone();
    let is_service = matches!(cli.command, None | Some(Command::Up | Command::Serve | Command::Worker));
    if !is_service && !loaded.is_set("LOG_LEVEL") && !log.debug {
        log.level = "warn,app::models=info".into();
    }
    log
}

fn exit_for_error(error: &anyhow::Error) -> Exit {
    let is_usage_error = error.chain().any(|cause| {
        cause.is::<ConfigErrors>()
            || cause.is::<UsageError>()
            || matches!(cause.downcast_ref::<ModelError>(), Some(ModelError::Licence { .. }))
    });
    if is_usage_error { Exit::Usage } else { Exit::Failure }
}

/// Prints, for `scripts/run`, the GPU runtimes that `scripts/gpu-runtime` must install before
/// `command` starts, one per line.
fn print_gpu_runtimes(command: Option<&Command>, settings: &Settings) -> anyhow::Result<Exit> {
    let loads_models = match command {
        None => true,
        Some(Command::Up | Command::Serve | Command::Worker) => true,
        Some(Command::Scan(_) | Command::Detect(_) | Command::Bench(_) | Command::Gpu(_)) => true,
        Some(Command::Enrol(_) | Command::Models(_) | Command::Reembed(_)) => true,
        Some(_) => false,
    };
    for runtime in settings.required_gpu_runtimes().iter().filter(|_| loads_models) {
        output::print_line(runtime)?;
    }
    Ok(Exit::Success)
}
