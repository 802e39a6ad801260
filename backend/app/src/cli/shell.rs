//! Implements `completions` and `man`, which describe the command line to shells and to `man`.
use super::Exit;
use anyhow::Context;
use clap::{Args, Command};
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

/// Prints the completions of `command`.
pub(super) fn print_completions(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "facecrawl", &mut text);
    match std::io::stdout().write_all(&text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(Exit::Success),
    }
}

/// Writes a manual page for `command` and for each of its subcommands.
pub(super) fn write_manual(args: &ManArgs, command: Command) -> anyhow::Result<Exit> {
    let write = || {
        std::fs::create_dir_all(&args.folder)?;
        clap_mangen::generate_to(command, &args.folder)
    };
    write().with_context(|| format!("cannot write the pages to {}", args.folder.display()))?;
    Ok(Exit::Success)
}
