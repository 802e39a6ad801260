//! Draws the throughput as horizontal bars in SVG.
use crate::{Results, ordered};
use std::fmt::Write;

const WIDTH: f64 = 880.0;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 60.0;
const BAR: f64 = 18.0;
const GAP: f64 = 10.0;
/// Height of an operation's heading.
const HEADING: f64 = 26.0;

/// Draws a bar for every side of every size of every operation. The longest bar of each operation
/// has the full width, because operations differ by orders of magnitude.
pub fn svg(results: &Results, title: &str) -> String {
    let bars = ordered(results);
    let groups: usize = results.values().map(|sizes| sizes.len()).sum();
    let height = TOP + bars.len() as f64 * BAR + groups as f64 * GAP + results.len() as f64 * HEADING + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"28\" font-size=\"16\" font-weight=\"bold\">{}</text>\n\
         <text x=\"20\" y=\"46\" fill=\"#555\">images per second (faces per second for face_embedding); compare bars only within one operation</text>\n",
        escape(title)
    );
    let mut y = TOP;
    let mut last = ("", "");
    for (operation, size, side, report) in &bars {
        if last.0 != *operation {
            y += HEADING;
            text(&mut out, 20.0, y - 6.0, "start", "bold", operation);
        } else if last.1 != *size {
            y += GAP;
        }
        last = (operation, size);
        let most = bars
            .iter()
            .filter(|bar| bar.0 == *operation)
            .map(|bar| bar.3.mean_throughput)
            .fold(0.0, f64::max);
        let share = if most > 0.0 { report.mean_throughput / most } else { 0.0 };
        let length = (WIDTH - LEFT - RIGHT) * share;
        let colour = if report.on_gpu == "none" { "#3b6fb6" } else { "#2b8a3e" };
        let name = match (*side, report.fell_back) {
            ("gpu_true", true) => "GPU (fell back)",
            ("gpu_true", false) => "GPU",
            _ => "CPU",
        };
        text(&mut out, LEFT - 8.0, y + BAR - 5.0, "end", "normal", &format!("{size}, {name}"));
        let thick = BAR - 3.0;
        let _ = writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{thick:.1}\" fill=\"{colour}\"/>"
        );
        let figure = format!("{:.1}", report.mean_throughput);
        text(&mut out, LEFT + length + 6.0, y + BAR - 5.0, "start", "normal", &figure);
        y += BAR;
    }
    out.push_str("</svg>\n");
    out
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, weight: &str, content: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-weight=\"{weight}\">{}</text>",
        escape(content)
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
