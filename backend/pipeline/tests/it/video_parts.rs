//! Tests that an analysis that continues after a part finds the same tracks as one that was not
//! interrupted, and the memory for the images of a part.
use crate::support::analyzer;
use crate::videos::decoder;
use inference::Priority;
use pipeline::{
    Analyzer, FrameFaces, Resume, VideoAnalyzeError, VideoAnalyzer, VideoOptions, VideoPart, VideoParts,
    VideoTrack,
};
use std::fs::File;
use std::path::Path;
use testing::film::{Codec, Container, Encoding, Film, repeat};
use video::{Index, Sampling};

/// Records the events of an analysis.
#[derive(Default)]
struct Record {
    times: Vec<i64>,
    parts: Vec<VideoPart>,
}

#[async_trait::async_trait]
impl VideoParts for Record {
    type Error = VideoAnalyzeError;

    async fn on_open(&mut self, _: &Index) -> Result<(), VideoAnalyzeError> {
        Ok(())
    }

    fn on_frame(&mut self, frame: FrameFaces<'_>) {
        assert_eq!(frame.size, (640, 360));
        self.times.push(frame.at_us);
    }

    async fn on_part(&mut self, part: VideoPart) -> Result<(), VideoAnalyzeError> {
        self.parts.push(part);
        Ok(())
    }
}

async fn analyze(analyzer: &Analyzer, path: &Path, options: &VideoOptions, resume: Option<Resume>) -> Record {
    let (mut record, file) = (Record::default(), File::open(path).unwrap());
    let decoder = &decoder();
    let video = VideoAnalyzer { analyzer, decoder, options, priority: Priority::Background };
    let end = video.analyze_parts(file, resume, &mut record).await.unwrap();
    assert_eq!((end.frames, end.damage), (record.parts.last().unwrap().frames, None));
    assert!(record.times.is_sorted_by(|a, b| a < b));
    record
}

/// Returns the values of a track that must not depend on interruptions.
fn summary(track: &VideoTrack) -> impl PartialEq + std::fmt::Debug + use<> {
    let shots: Vec<(i64, Option<Vec<f32>>)> = track
        .faces
        .iter()
        .map(|shot| (shot.at_us, shot.face.embedding.as_ref().map(|embedding| embedding.as_slice().to_vec())))
        .collect();
    (track.number, track.started_us, track.ended_us, track.samples, track.boxes.clone(), shots)
}

#[testing::needs(video, slow)]
#[testing::test]
async fn video_analysis_resumes_after_each_part() {
    let folder = tempfile::tempdir().unwrap();
    let encoding = Encoding { keyframe_interval: 50, ..Encoding::new(Codec::H264, Container::Mkv) };
    let (once, path) = (folder.path().join("once.mkv"), folder.path().join("film.mkv"));
    Film::standard().encode(&encoding, &once).unwrap();
    repeat(&once, 6, &encoding, &path).unwrap();
    let analyzer = analyzer().await;
    let auto = VideoOptions { max_gap_us: 1_500_000, ..VideoOptions::default() };
    let modes = [
        VideoOptions { sampling: Sampling::Keyframes, ..auto.clone() },
        VideoOptions { sampling: Sampling::Fps(1.5), ..auto.clone() },
        auto.clone(),
        VideoOptions { refine: true, ..auto },
    ];
    for options in modes {
        let full = analyze(&analyzer, &path, &options, None).await;
        assert!(full.parts.len() >= 3, "{}", full.parts.len());
        for stored in 1..full.parts.len() {
            let (head, tail) = full.parts.split_at(stored);
            let part = &head[stored - 1];
            assert!(part.until_us - stored.checked_sub(2).map_or(0, |at| head[at].until_us) <= 62_000_000);
            let tracks = head.iter().flat_map(|part| &part.tracks);
            let tracks = tracks.map(|track| track.number).max().unwrap_or(0);
            let resume = Resume { after_us: part.until_us, frames: part.frames, tracks };
            let resumed = analyze(&analyzer, &path, &options, Some(resume)).await;
            let context = format!("{:?}, after part {stored}", options.sampling);
            assert_eq!(resumed.times, full.times[part.frames as usize..], "{context}");
            assert_eq!(resumed.parts.len(), tail.len(), "{context}");
            for (part, expected) in resumed.parts.iter().zip(tail) {
                assert_eq!((part.until_us, part.frames), (expected.until_us, expected.frames), "{context}");
                let tracks = |part: &VideoPart| part.tracks.iter().map(summary).collect::<Vec<_>>();
                assert_eq!(tracks(part), tracks(expected), "{context}");
            }
        }
    }
}

const IMAGES_LIMIT: u64 = 3 << 19;
/// Memory for the images of one frame: at most eight faces with a crop and a chip.
const FRAME_IMAGE_BYTES: usize = 8 * (256 * 256 + 112 * 112) * 3;

async fn analyze_parts(
    analyzer: &Analyzer,
    film: &Path,
    bytes: Option<u64>,
    resume: Option<Resume>,
) -> Vec<VideoPart> {
    let mut options = VideoOptions { sampling: Sampling::Fps(5.0), images: true, ..VideoOptions::default() };
    options.max_image_bytes = bytes.unwrap_or(options.max_image_bytes);
    analyze(analyzer, film, &options, resume).await.parts
}

/// Number, start, end and number of frames of a track.
type Summary = (u32, i64, i64, u32);

/// Returns the values of parts that must not depend on interruptions.
fn summaries(parts: &[VideoPart]) -> Vec<(i64, u64, Vec<Summary>)> {
    let tracks = |part: &VideoPart| {
        let fields = |track: &VideoTrack| (track.number, track.started_us, track.ended_us, track.samples);
        part.tracks.iter().map(fields).collect()
    };
    parts.iter().map(|part| (part.until_us, part.frames, tracks(part))).collect()
}

fn samples(parts: &[VideoPart]) -> u32 {
    parts.iter().flat_map(|part| &part.tracks).map(|track| track.samples).sum()
}

#[testing::needs(video)]
#[testing::test]
async fn video_part_ends_early_at_image_memory_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film.mkv");
    Film::standard().encode(&Encoding::new(Codec::H264, Container::Mkv), &path).unwrap();
    let analyzer = analyzer().await;
    let full = analyze_parts(&analyzer, &path, None, None).await;
    assert_eq!((full.len(), full[0].frames), (1, 126));

    let limited = analyze_parts(&analyzer, &path, Some(IMAGES_LIMIT), None).await;
    assert!(limited.len() > 2, "{}", limited.len());
    assert_eq!(limited.last().unwrap().frames, 126);
    // Nothing is lost except a few faces that only continue a track.
    assert!(samples(&limited) * 100 >= samples(&full) * 90, "{} {}", samples(&limited), samples(&full));
    for part in &limited {
        let shots = part.tracks.iter().flat_map(|track| &track.faces);
        let images = shots.filter_map(|shot| shot.images.as_ref());
        let bytes: usize = images.map(|pair| pair.chip.data().len() + pair.crop.data().len()).sum();
        assert!(bytes <= IMAGES_LIMIT as usize + FRAME_IMAGE_BYTES, "{bytes}");
    }

    // An analysis that continues after a part finds the same parts.
    for (at, part) in limited.iter().enumerate().take(2) {
        let tracks = limited[..=at].iter().map(|part| part.tracks.len() as u32).sum();
        let resume = Resume { after_us: part.until_us, frames: part.frames, tracks };
        let resumed = analyze_parts(&analyzer, &path, Some(IMAGES_LIMIT), Some(resume)).await;
        assert_eq!(summaries(&resumed), summaries(&limited[at + 1..]));
    }
}
