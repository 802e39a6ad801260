//! Implements `completions` and `man`, which describe the command line to shells and to `man`.
use super::{Cli, Exit};
use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::Write;
use std::path::PathBuf;

/// The arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// The arguments of `man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Folder for the pages of all commands
    folder: PathBuf,
}

/// Prints the completions.
pub(super) fn print_completions(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "facecrawl", &mut text);
    match std::io::stdout().write_all(&text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(Exit::Success),
    }
}

/// Writes a page for the program and for each command.
pub(super) fn write_manual(args: &ManArgs) -> anyhow::Result<Exit> {
    let write = || {
        std::fs::create_dir_all(&args.folder)?;
        clap_mangen::generate_to(Cli::command(), &args.folder)
    };
    write().with_context(|| format!("cannot write the pages to {}", args.folder.display()))?;
    Ok(Exit::Success)
}
