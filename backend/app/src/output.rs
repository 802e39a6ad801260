//! Writes the output of commands: tables and JSON on stdout, progress bars and log lines on stderr,
//! and files that only their owner can read.
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ColumnConstraint, ContentArrangement, Table};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use store::blobs::deletions::CopyTotals;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Maximum width of a table in characters. Terminals, logs and issues display lines of this width
/// without wrapping.
pub(crate) const MAX_TABLE_WIDTH: u16 = 100;

/// Returns an empty table in the common style, as wide as the terminal and at most 100 characters.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    let width = table.width().map_or(MAX_TABLE_WIDTH, |terminal| terminal.min(MAX_TABLE_WIDTH));
    table.set_width(width);
    table
}

/// Returns a table in which the given columns never break words. The other columns share the rest
/// of the width.
pub(crate) fn table_with_unbroken_columns<const N: usize>(columns: &[usize], header: [&str; N]) -> Table {
    let mut table = table(header);
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// Prints a line. Does not fail if the reader has closed the pipe (`| head`).
pub(crate) fn print_line(text: impl std::fmt::Display) -> anyhow::Result<()> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print_line(serde_json::to_string_pretty(value)?)
}

/// Prints the value as JSON if `as_json` is set, and otherwise the text for people.
pub(crate) fn print_json_or(
    as_json: bool,
    value: &impl serde::Serialize,
    text: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if as_json { print_json(value) } else { text() }
}

pub(crate) fn print_copy_totals(blobs: &CopyTotals) -> anyhow::Result<()> {
    print_line(format!(
        "blobs: {} copied, {} already present, {} deleted, {} missing",
        blobs.copied, blobs.there, blobs.removed, blobs.missing
    ))?;
    blobs.missing_keys.iter().try_for_each(|key| print_line(format!("missing: {key}")))
}

/// Formats a time in RFC 3339, without fractions of a second.
pub(crate) fn format_time(time: OffsetDateTime) -> String {
    let time = time.replace_nanosecond(0).unwrap_or(time);
    time.format(&Rfc3339).unwrap_or_default()
}

/// Formats a number of bytes for people: `4.2 MB`.
pub(crate) fn format_megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Creates a folder and its missing parents. Other users cannot enter folders that it creates.
pub(crate) fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates or truncates a file. Other users cannot read a file that it creates. An existing file
/// keeps its mode.
pub(crate) fn create_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Writes a whole file, like [`create_private_file`].
pub(crate) fn write_private_file(path: &Path, content: &[u8]) -> io::Result<()> {
    create_private_file(path)?.write_all(content)
}

/// All bars of the process. Draws nothing if stderr is not a terminal.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

fn add_bar(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates are valid, as a test checks");
    let bar = BARS.add(bar.with_style(style.progress_chars("=> ")));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Returns a bar for a download.
pub fn download_bar(name: &str, length: Option<u64>) -> ProgressBar {
    let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new).with_message(name.to_owned());
    add_bar(bar, "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// Returns a bar for a scan with a known number of images.
pub fn image_bar(total: u64) -> ProgressBar {
    add_bar(ProgressBar::new(total), "[{bar:30}] {pos}/{len} {msg} {eta}")
}

/// Returns a bar for a video, in seconds. Its length is set when the duration is known. The prefix
/// is the time in the video. The message is cut off at the edge of the terminal.
pub fn video_bar() -> ProgressBar {
    add_bar(ProgressBar::no_length(), "{prefix} [{bar:10}] {wide_msg}")
}

/// Returns a bar for a crawl, whose length is unknown.
pub fn crawl_bar() -> ProgressBar {
    add_bar(ProgressBar::no_length(), "{spinner} {pos} images {msg} {elapsed}")
}

/// Writes log lines to stderr. Bars are hidden while a line is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        BARS.suspend(|| io::stderr().lock().write_all(bytes)).map(|()| bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn progress_bar_templates_parse() {
        super::download_bar("model.onnx", Some(10)).finish_and_clear();
        super::image_bar(3).finish_and_clear();
        super::crawl_bar().finish_and_clear();
        super::video_bar().finish_and_clear();
    }
}
