//! Implements `doctor`, which checks the installation and explains each problem, its consequence
//! and how to fix it. The command downloads nothing, and keeps no data: the check of the blobs
//! writes a small file and deletes it.
mod machine;
mod parts;

use super::Exit;
use crate::config::{ConfigErrors, LoadedConfig};
use crate::output;
use clap::Args;
use serde::Serialize;

/// The arguments of `doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(super) json: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// The service works, with restrictions.
    Warning,
    /// The service does not start, or does not work.
    Error,
}

/// A checked part of the installation.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    name: &'static str,
    level: Level,
    /// What was found.
    found: String,
    /// The consequence of the problem: what does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
    /// How to fix the problem: a command or a setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, level: Level::Ok, found: found.into(), cost: None, remedy: None }
    }

    pub(super) fn warning(
        name: &'static str,
        found: impl Into<String>,
        cost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Warning,
            cost: Some(cost.into()),
            remedy: Some(remedy.into()),
            ..Self::ok(name, found)
        }
    }

    pub(super) fn error(
        name: &'static str,
        found: impl Into<String>,
        cost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Error, ..Self::warning(name, found, cost, remedy) }
    }
}

/// All checks, as `--json` prints them.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    level: Level,
    checks: Vec<Check>,
}

/// Checks the installation. The exit status is 1 if a check found an error.
pub(super) async fn run(loaded: &LoadedConfig, args: &DoctorArgs) -> anyhow::Result<Exit> {
    let settings = &loaded.settings;
    let mut checks = machine::checks(settings);
    checks.push(Check::ok("configuration", format!("valid; {} variables are set", set_variables(loaded))));
    checks.extend(parts::checks(settings).await);
    print(args, checks)
}

/// Reports an invalid configuration, which prevents all other checks.
pub(super) fn report_invalid_configuration(errors: &ConfigErrors, args: &DoctorArgs) -> anyhow::Result<Exit> {
    let remedy = "change the values; facecrawl config check prints those in use";
    let checks = errors
        .0
        .iter()
        .map(|error| Check::error("configuration", error.to_string(), "no command starts", remedy));
    print(args, checks.collect())
}

fn set_variables(loaded: &LoadedConfig) -> usize {
    loaded.resolved.iter().filter(|variable| variable.source != "default").count()
}

fn print(args: &DoctorArgs, checks: Vec<Check>) -> anyhow::Result<Exit> {
    let worst = [Level::Error, Level::Warning]
        .into_iter()
        .find(|level| checks.iter().any(|check| check.level == *level));
    let level = worst.unwrap_or(Level::Ok);
    let report = Report { version: env!("CARGO_PKG_VERSION"), level, checks };
    output::print_json_or(args.json, &report, || print_text(&report))?;
    Ok(if level == Level::Error { Exit::Failure } else { Exit::Success })
}

fn print_text(report: &Report) -> anyhow::Result<()> {
    output::print_line(format!("facecrawl {}", report.version))?;
    for check in &report.checks {
        let word = match check.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "ERROR",
        };
        output::print_line(format!("{word:<8} {:<14} {}", check.name, check.found))?;
        for (label, text) in [("cost", &check.cost), ("remedy", &check.remedy)] {
            if let Some(text) = text {
                output::print_line(format!("{:<23} {label}: {text}", ""))?;
            }
        }
    }
    let count = |level| report.checks.iter().filter(|check| check.level == level).count();
    output::print_line(match (count(Level::Error), count(Level::Warning)) {
        (0, 0) => "no problems found".into(),
        (errors, warnings) => format!("{errors} error(s), {warnings} warning(s)"),
    })
}
