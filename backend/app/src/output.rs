//! Prints tables and JSON to stdout.
use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use std::io::{self, Write};
use store::blobs::deletions::Copied;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Maximum width of a table in characters. Terminals, logs and issues display lines of this width
/// without wrapping.
pub(super) const COLUMNS: u16 = 100;

/// Returns an empty table in the common style, as wide as the terminal and at most 100 characters.
pub(super) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    let width = table.width().map_or(COLUMNS, |terminal| terminal.min(COLUMNS));
    table.set_width(width);
    table
}

/// Returns a table in which the given columns never break words. The other columns share the rest
/// of the width.
pub(super) fn table_with_unbroken<const N: usize>(columns: &[usize], header: [&str; N]) -> Table {
    let mut table = table(header);
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// Prints a line. A reader that closed the pipe (`| head`) is not an error.
pub(crate) fn line(text: impl std::fmt::Display) -> anyhow::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

pub(crate) fn copied(blobs: &Copied) -> anyhow::Result<()> {
    line(format!(
        "blobs: {} copied, {} already present, {} deleted, {} missing",
        blobs.copied, blobs.there, blobs.removed, blobs.missing
    ))?;
    blobs.missing_keys.iter().try_for_each(|key| line(format!("missing: {key}")))
}

/// Formats a time in RFC 3339, without fractions of a second.
pub(crate) fn at(time: OffsetDateTime) -> String {
    let time = time.replace_nanosecond(0).unwrap_or(time);
    time.format(&Rfc3339).unwrap_or_default()
}

/// Formats a number of bytes for people: `4.2 MB`.
pub(super) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
