//! Draws progress bars on stderr, and writes log lines without breaking them.
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::{self, Write};
use std::sync::LazyLock;
use std::time::Duration;

/// All bars of the process. Draws nothing if stderr is not a terminal.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates are valid, as a test checks");
    let bar = BARS.add(bar.with_style(style.progress_chars("=> ")));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Returns a bar for a download.
pub fn bytes(name: &str, length: Option<u64>) -> ProgressBar {
    let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new).with_message(name.to_owned());
    styled(bar, "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// Returns a bar for a scan with a known number of images.
pub fn images(total: u64) -> ProgressBar {
    styled(ProgressBar::new(total), "[{bar:30}] {pos}/{len} {msg} {eta}")
}

/// Returns a bar for a video, in seconds. Its length is set when the duration is known. The prefix
/// is the time in the video. The message is cut off at the edge of the terminal.
pub fn video() -> ProgressBar {
    styled(ProgressBar::no_length(), "{prefix} [{bar:10}] {wide_msg}")
}

/// Returns a bar for a crawl, whose length is unknown.
pub fn crawl() -> ProgressBar {
    styled(ProgressBar::no_length(), "{spinner} {pos} images {msg} {elapsed}")
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
    fn the_templates_parse() {
        super::bytes("model.onnx", Some(10)).finish_and_clear();
        super::images(3).finish_and_clear();
        super::crawl().finish_and_clear();
        super::video().finish_and_clear();
    }
}
