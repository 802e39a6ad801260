//! Tests the people and tracks that are found in the standard film of drawn people.

use crate::support::analyzer;
use inference::Priority;
use pipeline::{
    Analyzer, FrameFaces, Rotate, VideoAnalysis, VideoAnalyzeError, VideoAnalyzer, VideoOptions,
    VideoProgress,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use testing::film::{Codec, Container, Encoding, Film, MovieIndex, Truth};
use tracking::evaluate::{Sample, identity_counts, track_recall};
use video::{Config, Decoder, Index, Launcher, Limits, Sampling, VideoError};

/// Minimum side of a face in pixels. Smaller faces are ignored.
const MIN_SIDE: f32 = 40.0;
/// Minimum IoU at which a found box matches a true box.
const MIN_IOU: f32 = 0.5;

pub(crate) fn decoder() -> Decoder {
    // The sandbox is tested in the crate `video` and through the program.
    let limits = Limits::default();
    Decoder::open(Config { ffmpeg: testing::ffmpeg(), launcher: Launcher::Direct, threads: 2, limits })
        .unwrap()
}

/// Opens a decoder whose program was just written, and tries again while the file is busy. If
/// another test starts a program during the write, the new process holds the open file until
/// `exec`. Until then, the kernel does not run the file.
pub(crate) fn open_with_retries(config: &Config) -> Decoder {
    loop {
        match Decoder::open(config.clone()) {
            Err(VideoError::Unavailable(text)) if text.contains("Text file busy") => {}
            opened => return opened.unwrap(),
        }
    }
}

fn options(sampling: Sampling) -> VideoOptions {
    VideoOptions { sampling, ..VideoOptions::default() }
}

/// Records the times of the frames.
#[derive(Default)]
struct Times {
    open_calls: usize,
    frames_us: BTreeSet<i64>,
}

impl VideoProgress for Times {
    fn on_open(&mut self, index: &Index) {
        assert!(self.frames_us.is_empty() && !index.keyframes_us.is_empty());
        self.open_calls += 1;
    }

    fn on_frame(&mut self, frame: FrameFaces<'_>) {
        assert!(self.frames_us.last().is_none_or(|last| *last < frame.at_us), "frames arrive in order");
        self.frames_us.insert(frame.at_us);
    }
}

async fn analyze(film: &Film, encoding: &Encoding, sampling: Sampling) -> (VideoAnalysis, Times, Truth) {
    analyze_with(film, encoding, &options(sampling)).await
}

async fn analyze_with(
    film: &Film,
    encoding: &Encoding,
    options: &VideoOptions,
) -> (VideoAnalysis, Times, Truth) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film").with_extension(encoding.container.extension());
    film.encode(encoding, &path).unwrap();
    let (analyzer, file) = (analyzer().await, File::open(&path).unwrap());
    let mut times = Times::default();
    let analysis = analyze_file(&analyzer, &decoder(), options, file, &mut times).await.unwrap();
    assert_eq!((times.open_calls, times.frames_us.len() as u64), (1, analysis.frames));
    (analysis, times, film.truth(encoding))
}

pub(crate) async fn analyze_file(
    analyzer: &Analyzer,
    decoder: &Decoder,
    options: &VideoOptions,
    file: File,
    progress: &mut dyn VideoProgress,
) -> Result<VideoAnalysis, VideoAnalyzeError> {
    let priority = Priority::Background;
    VideoAnalyzer { analyzer, decoder, options, priority }.analyze(file, progress).await
}

/// Returns the true boxes at the analysed times, by person or, with `tracks`, by track.
fn truth_samples(truth: &Truth, times: &Times, tracks: bool) -> Vec<Sample> {
    let first = truth.frames[0].at_us;
    let mut samples = Vec::new();
    for (number, track) in truth.tracks.iter().enumerate() {
        let identity = if tracks { number as u64 } else { track.person.into() };
        for (at_us, bbox) in &track.boxes {
            let at_us = at_us - first;
            if times.frames_us.contains(&at_us) && bbox.width.min(bbox.height) >= MIN_SIDE {
                samples.push(Sample { identity, at_us, bbox: *bbox });
            }
        }
    }
    samples
}

/// Returns the found boxes that match a true box. Boxes of small and of partly hidden faces are
/// ignored.
fn found_samples(analysis: &VideoAnalysis, truth: &[Sample], people: bool) -> Vec<Sample> {
    let mut by_time: BTreeMap<i64, Vec<&Sample>> = BTreeMap::new();
    for sample in truth {
        by_time.entry(sample.at_us).or_default().push(sample);
    }
    let mut samples = Vec::new();
    for track in &analysis.tracks {
        // A track of an unknown person counts as a separate person.
        let identity = track.person.filter(|_| people).map_or(1_000 + u64::from(track.number), u64::from);
        for timed in &track.boxes {
            let true_samples = by_time.get(&timed.at_us).into_iter().flatten();
            if true_samples.into_iter().any(|sample| sample.bbox.iou(&timed.bbox) >= MIN_IOU) {
                samples.push(Sample { identity, at_us: timed.at_us, bbox: timed.bbox });
            }
        }
    }
    samples
}

/// Checks tracks and people against the truth, and returns recall and IDF1.
fn check_against_truth(analysis: &VideoAnalysis, times: &Times, truth: &Truth) -> (f64, f64) {
    let by_track = truth_samples(truth, times, true);
    let recall = track_recall(&by_track, &found_samples(analysis, &by_track, false), MIN_IOU, 0.5);
    let by_person = truth_samples(truth, times, false);
    let idf1 = identity_counts(&by_person, &found_samples(analysis, &by_person, true), MIN_IOU).idf1();
    let wrong: usize = analysis
        .tracks
        .iter()
        .filter(|track| track.person.is_some())
        .filter(|track| {
            !by_track.iter().any(|true_box| {
                track
                    .boxes
                    .iter()
                    .any(|found| found.at_us == true_box.at_us && found.bbox.iou(&true_box.bbox) >= 0.3)
            })
        })
        .count();
    println!(
        "recall {recall:.3}, IDF1 {idf1:.3}, {} people, {} tracks, {wrong} wrong",
        analysis.people,
        analysis.tracks.len()
    );
    assert_eq!(wrong, 0, "every found person is in the film");
    (recall, idf1)
}

#[testing::needs(video)]
#[testing::test]
async fn dense_sampling_finds_tracks_and_people() {
    let film = Film::standard();
    let encoding = Encoding::new(Codec::H264, Container::Mp4);
    let (analysis, times, truth) = analyze(&film, &encoding, Sampling::Fps(5.0)).await;
    let (recall, idf1) = check_against_truth(&analysis, &times, &truth);
    assert!(recall >= 0.98, "{recall}");
    assert!(idf1 >= 0.9, "{idf1}");
    let people: BTreeSet<u32> = truth.tracks.iter().map(|track| track.person).collect();
    assert_eq!(analysis.people as usize, people.len());
    assert_eq!(analysis.damage, None);
    for track in &analysis.tracks {
        assert!(track.faces.len() <= 3);
        assert!(track.faces.iter().all(|face| (track.started_us..=track.ended_us).contains(&face.at_us)));
        let embedded = track.faces.iter().any(|face| face.face.embedding.is_some());
        assert_eq!(embedded, track.person.is_some());
    }
    // Times agree with the truth within one sample.
    assert!(time_error(&analysis, &truth) <= 200_000);
}

/// Returns the largest difference between the start or the end of a true track, whose faces are
/// large enough, and that of the track that fits best.
fn time_error(analysis: &VideoAnalysis, truth: &Truth) -> i64 {
    let first = truth.frames[0].at_us;
    let large = truth.tracks.iter().filter(|track| track.boxes.iter().all(|(_, b)| b.width >= MIN_SIDE));
    let error = |true_track: &testing::film::Track| {
        let max_difference = |track: &pipeline::VideoTrack| {
            let start = (track.started_us - (true_track.start_us - first)).abs();
            start.max((track.ended_us - (true_track.end_us - first)).abs())
        };
        analysis.tracks.iter().map(max_difference).min().unwrap()
    };
    large.map(error).max().unwrap()
}

#[testing::needs(video)]
#[testing::test]
async fn keyframes_suffice_to_find_tracks_and_people() {
    let film = Film::standard();
    let encoding = Encoding { keyframe_interval: 25, ..Encoding::new(Codec::H264, Container::Mkv) };
    let (analysis, times, truth) = analyze(&film, &encoding, Sampling::Auto).await;
    let (recall, idf1) = check_against_truth(&analysis, &times, &truth);
    assert!(recall >= 0.98, "{recall}");
    assert!(idf1 >= 0.9, "{idf1}");
    assert!(analysis.frames < 40, "{} frames", analysis.frames);
}

/// The last frame is at 3.92 s, which is not a multiple of the time between two looks.
#[testing::needs(video)]
#[testing::test]
async fn track_reaches_last_frame_of_video() {
    let mut film = Film::standard();
    film.shots = vec![film.shots[1].clone()];
    film.shots[0].frames = 99;
    for (container, keyframe_interval) in
        [(Container::Mp4, 250), (Container::Mkv, 25), (Container::Ts, 25), (Container::Avi, 250)]
    {
        let encoding = Encoding { keyframe_interval, ..Encoding::new(Codec::H264, container) };
        for options in [options(Sampling::Auto), options(Sampling::Fps(0.5)), refined_options()] {
            let (analysis, times, truth) = analyze_with(&film, &encoding, &options).await;
            let end_us = truth.frames.last().unwrap().at_us - truth.frames[0].at_us;
            let case = format!("{encoding:?} {options:?} {:?}", times.frames_us);
            // Two seconds between two looks can be too much to follow a face that moves.
            assert_eq!(analysis.people, 1, "{case}");
            let track = analysis.tracks.iter().max_by_key(|track| track.ended_us).unwrap();
            assert!(track.ended_us.abs_diff(end_us) <= 1_000, "{} of {end_us}: {case}", track.ended_us);
            assert_eq!(analysis.last_us, Some(track.ended_us), "{case}");
            let expected = if options.refine { 250_000 } else { 2_000_000 };
            assert_eq!(analysis.tolerance_us, Some(expected), "{case}");
        }
    }
}

fn refined_options() -> VideoOptions {
    VideoOptions { refine: true, ..options(Sampling::Auto) }
}

#[testing::needs(video, slow)]
#[testing::test]
async fn refine_finds_track_times_within_quarter_second() {
    let film = Film::standard();
    // Keyframes at cuts and in between; groups that are too long; and every frame a keyframe.
    for (codec, keyframe_interval) in [(Codec::H264, 25), (Codec::H264, 250), (Codec::Mjpeg, 1)] {
        let encoding = Encoding { keyframe_interval, ..Encoding::new(codec, Container::Mkv) };
        let (auto, sparse, truth) = analyze(&film, &encoding, Sampling::Auto).await;
        let (plain_recall, plain_idf1) = check_against_truth(&auto, &sparse, &truth);
        let (analysis, times, truth) = analyze_with(&film, &encoding, &refined_options()).await;
        let (recall, idf1) = check_against_truth(&analysis, &times, &truth);
        let (error, plain_error) = (time_error(&analysis, &truth), time_error(&auto, &truth));
        println!(
            "{codec:?}, a keyframe each {keyframe_interval} frames: {} frames, error {error} us; without \
             closer looks {} frames, error {plain_error} us",
            analysis.frames, auto.frames
        );
        assert!(sparse.frames_us.is_subset(&times.frames_us));
        assert!(recall >= plain_recall && recall >= 0.98, "{recall} {plain_recall}");
        assert!(idf1 >= plain_idf1 && idf1 > 0.94, "{idf1} {plain_idf1}");
        assert!(error <= 250_000, "{error}");
        let people: BTreeSet<u32> = truth.tracks.iter().map(|track| track.person).collect();
        assert_eq!(analysis.people as usize, people.len());
    }
}

#[testing::needs(video)]
#[testing::test]
async fn refine_adds_no_frames_without_faces() {
    let mut film = Film::standard();
    // Nobody is in the image from 20 s to 40 s.
    film.shots[5].frames = 500;
    let encoding = Encoding { keyframe_interval: 50, ..Encoding::new(Codec::H264, Container::Mp4) };
    let (auto, sparse, _) = analyze(&film, &encoding, Sampling::Auto).await;
    let (analysis, times, truth) = analyze_with(&film, &encoding, &refined_options()).await;
    let (recall, idf1) = check_against_truth(&analysis, &times, &truth);
    assert!(recall >= 0.98 && idf1 > 0.94, "{recall} {idf1}");
    let empty = 22_500_000..37_500_000;
    let frame_times: Vec<&i64> = times.frames_us.range(empty.clone()).collect();
    assert_eq!(frame_times, sparse.frames_us.range(empty).collect::<Vec<_>>());
    println!("{} frames; without closer looks {}", analysis.frames, auto.frames);
    assert!(time_error(&analysis, &truth) <= 250_000);
}

#[testing::needs(video)]
#[testing::test]
async fn refine_changes_nothing_in_video_without_faces() {
    let mut film = Film::standard();
    film.shots.iter_mut().for_each(|shot| shot.actors.clear());
    for keyframe_interval in [25, 250] {
        let encoding = Encoding { keyframe_interval, ..Encoding::new(Codec::H264, Container::Mp4) };
        let (auto, sparse, _) = analyze(&film, &encoding, Sampling::Auto).await;
        let (analysis, times, _) = analyze_with(&film, &encoding, &refined_options()).await;
        assert_eq!(times.frames_us, sparse.frames_us);
        assert_eq!((analysis.frames, analysis.people), (auto.frames, 0));
    }
}

#[testing::needs(video)]
#[testing::test]
async fn truncated_video_is_analysed_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film.mp4");
    let encoding = Encoding { index: MovieIndex::Start, ..Encoding::new(Codec::H264, Container::Mp4) };
    Film::standard().encode(&encoding, &path).unwrap();
    let file = File::options().write(true).read(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    let decoder = decoder();
    let analyzer = analyzer().await;
    let analyze = async |options, file| analyze_file(&analyzer, &decoder, &options, file, &mut ()).await;
    let analysis = analyze(options(Sampling::Fps(2.0)), file).await.unwrap();
    assert!(analysis.damage.is_some_and(|damage| damage.truncated));
    assert!(analysis.frames > 5 && analysis.people > 0);
    let file = File::open(&path).unwrap();
    let second = analyze(refined_options(), file).await.unwrap();
    assert!(second.damage.is_some_and(|damage| damage.truncated));
    assert!(second.frames > analysis.frames && second.people > 0, "{}", second.frames);
    let empty = tempfile::tempfile().unwrap();
    let error = analyze(options(Sampling::Auto), empty).await.unwrap_err();
    assert!(matches!(error, VideoAnalyzeError::Video(VideoError::NotAVideo)), "{error}");
    assert_eq!(error.reason(), domain::Reason::NotAVideo);
}

/// The future can be dropped at any time, also while the decoder lists the packets of a large file.
#[testing::test]
async fn dropping_analysis_ends_decoder_process() {
    let folder = tempfile::tempdir().unwrap();
    let (program, fifo) = (folder.path().join("ffmpeg"), folder.path().join("fifo"));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // The program holds the pipe until it ends.
    let script = format!(
        "#!/bin/sh\n[ \"$1\" != -version ] || {{ echo ffmpeg version 7; echo libavutil 60.; exit; }}\n\
         exec 3> {}; echo started >&3; kill -STOP $$\n",
        fifo.display()
    );
    std::fs::write(&program, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&program, executable).unwrap();
    let limits = Limits { stall_timeout: std::time::Duration::from_secs(3_600), ..Limits::default() };
    let config = Config { ffmpeg: program, launcher: Launcher::Direct, threads: 1, limits };
    let decoder = open_with_retries(&config);
    let analyzer = analyzer().await;
    let analysis = tokio::spawn(async move {
        let (file, options) = (tempfile::tempfile().unwrap(), options(Sampling::Auto));
        analyze_file(&analyzer, &decoder, &options, file, &mut ()).await
    });
    let read_line = move || {
        let mut pipe = std::io::BufReader::new(File::open(fifo).unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut pipe, &mut line).unwrap();
        (line, pipe)
    };
    let (line, mut pipe) = tokio::task::spawn_blocking(read_line).await.unwrap();
    assert_eq!(line, "started\n");
    analysis.abort();
    let ended = move || std::io::Read::read(&mut pipe, &mut [0]).unwrap();
    assert_eq!(tokio::task::spawn_blocking(ended).await.unwrap(), 0, "the process has ended");
}

/// Transport streams do not state the rotation of their frames.
#[testing::needs(video)]
#[testing::test]
async fn rotation_option_finds_people_in_upside_down_video() {
    let film = Film::standard();
    let upright = Encoding { keyframe_interval: 25, ..Encoding::new(Codec::H264, Container::Ts) };
    let upside_down = Encoding { rotation: 180, ..upright.clone() };
    let (upright_analysis, ..) = analyze(&film, &upright, Sampling::Auto).await;
    let (unrotated, ..) = analyze(&film, &upside_down, Sampling::Auto).await;
    let rotating = VideoOptions { rotate: Rotate::Auto, ..options(Sampling::Auto) };
    let (rotated, ..) = analyze_with(&film, &upside_down, &rotating).await;
    assert!(upright_analysis.people > 1, "{}", upright_analysis.people);
    assert_eq!(unrotated.people, 0, "faces that are upside down are not embedded");
    // Videos are searched at another rotation only where a box gives a sign of a face.
    assert!(
        rotated.people + 1 >= upright_analysis.people,
        "{} of {}",
        rotated.people,
        upright_analysis.people
    );
}
