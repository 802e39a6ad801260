//! Tables and JSON on stdout.
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use std::io::{self, Write};
use store::copies::Copied;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Most columns of a table: what a terminal, a log and an issue show without breaking lines.
const COLUMNS: u16 = 100;

/// An empty table in the house style, as wide as the terminal and at most 100 columns.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    let width = table.width().map_or(COLUMNS, |terminal| terminal.min(COLUMNS));
    table.set_width(width);
    table
}

/// The same with columns whose words are never broken; the others are as wide as the rest allows.
pub(crate) fn whole<const N: usize>(columns: &[usize], header: [&str; N]) -> Table {
    let mut table = table(header);
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// Prints a line. A reader that went away (`| head`) is no error.
pub(super) fn line(text: impl std::fmt::Display) -> anyhow::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints one JSON document.
pub(super) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// What became of copied blobs.
pub(super) fn copied(blobs: &Copied) -> anyhow::Result<()> {
    line(format!(
        "blobs: {} copied, {} there already, {} removed, {} missing",
        blobs.copied, blobs.there, blobs.removed, blobs.missing
    ))?;
    blobs.missing_keys.iter().try_for_each(|key| line(format!("missing: {key}")))
}

/// A moment to the second, as RFC 3339 has it.
pub(super) fn at(time: OffsetDateTime) -> String {
    let time = time.replace_nanosecond(0).unwrap_or(time);
    time.format(&Rfc3339).unwrap_or_default()
}

/// Bytes for people: `4.2 MB`.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
