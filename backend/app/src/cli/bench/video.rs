//! Implements `--operation video`.
use super::{BenchArgs, system, video_table, write_json_or};
use crate::cli::Exit;
use crate::config::Settings;
use crate::decoder::open_decoder;
use crate::progress;
use bench::{Process, Side, VideoPlanReport, VideoReport, measure_video};
use pipeline::VideoOptions;

/// Measures the video, and writes the report.
pub(super) async fn run(
    settings: &Settings,
    args: &BenchArgs,
    sides: &[Side],
    process: &Process,
    notes: Vec<String>,
) -> anyhow::Result<Exit> {
    let decoder = tokio::task::block_in_place(|| open_decoder(settings))?.decoder?;
    let options =
        VideoOptions { match_threshold: settings.service.match_threshold, ..VideoOptions::default() };
    let plan = args.video_plan(args.file.clone().unwrap_or_default(), options);
    let measurements = plan.samplings.len() * (1 + sides.len()) * (plan.warmup + plan.iterations);
    let bar = progress::images(measurements as u64);
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let (results, index) = measure_video(&plan, sides, &decoder, process, step).await?;
    bar.finish_and_clear();
    let report = VideoReport {
        benchmark_results: results,
        plan: VideoPlanReport::new(&plan, &index, &decoder),
        system: system(settings, sides),
        notes,
    };
    write_json_or(args, &report, || video_table::text(&report))?;
    let all = report.benchmark_results.values().flat_map(|samplings| samplings.values());
    let all = all.flat_map(|sides| sides.values());
    let (succeeded, failed) = all.fold((0, 0), |(s, f), side| (s + side.analyses, f + side.failed));
    Ok(Exit::of(succeeded, failed))
}
