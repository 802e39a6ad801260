//! Implements `config`, which prints the configuration.
use super::Exit;
use crate::config::{LoadedConfig, env_example};
use crate::output;
use clap::{Args, Subcommand};
use serde_json::json;

/// The arguments of `config`.
#[derive(Args, Debug)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every value and its source; secrets are masked
    Check {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Print .env.example: every variable with its description and default
    Example,
}

pub(super) fn run(loaded: &LoadedConfig, args: ConfigArgs) -> anyhow::Result<Exit> {
    let ConfigCommand::Check { json } = args.command else {
        output::print_line(env_example().trim_end())?;
        return Ok(Exit::Success);
    };
    // Applies the rule of the commands that listen, so that an operator sees the error before the
    // service starts.
    loaded.settings.check_listen_address().map_err(crate::config::ConfigErrors::from)?;
    if json {
        output::print_json(&json!({ "variables": loaded.resolved }))?;
    } else {
        let mut table = output::table_with_unbroken_columns(&[0], ["variable", "value", "source"]);
        for resolved in &loaded.resolved {
            table.add_row([resolved.name, resolved.value.as_deref().unwrap_or("(unset)"), &resolved.source]);
        }
        output::print_line(table)?;
    }
    Ok(Exit::Success)
}
