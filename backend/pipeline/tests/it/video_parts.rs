//! An analysis that continues after a part finds the same tracks as one that was not interrupted.

use crate::support::analyzer;
use crate::videos::decoder;
use inference::Priority;
use pipeline::{
    Analyzer, FrameFaces, Resume, VideoAnalyzeError, VideoOptions, VideoPart, VideoParts, VideoTrack,
};
use std::fs::File;
use std::path::Path;
use testing::film::{Codec, Container, Encoding, Film, repeat};
use video::{Index, Sampling};

/// Keeps what an analysis reports.
#[derive(Default)]
struct Kept {
    times: Vec<i64>,
    parts: Vec<VideoPart>,
}

#[async_trait::async_trait]
impl VideoParts for Kept {
    type Error = VideoAnalyzeError;

    async fn opened(&mut self, _: &Index) -> Result<(), VideoAnalyzeError> {
        Ok(())
    }

    fn frame(&mut self, frame: FrameFaces<'_>) {
        assert_eq!(frame.size, (640, 360));
        self.times.push(frame.at_us);
    }

    async fn part(&mut self, part: VideoPart) -> Result<(), VideoAnalyzeError> {
        self.parts.push(part);
        Ok(())
    }
}

async fn analyze(analyzer: &Analyzer, path: &Path, options: &VideoOptions, resume: Option<Resume>) -> Kept {
    let (mut kept, file) = (Kept::default(), File::open(path).unwrap());
    let analyzed =
        analyzer.analyze_parts(&decoder(), file, options, Priority::Background, resume, &mut kept).await;
    let end = analyzed.unwrap();
    assert_eq!((end.frames, end.damage), (kept.parts.last().unwrap().frames, None));
    assert!(kept.times.is_sorted_by(|a, b| a < b));
    kept
}

/// What must not depend on interruptions.
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
async fn an_analysis_continues_after_each_part() {
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
        let whole = analyze(&analyzer, &path, &options, None).await;
        assert!(whole.parts.len() >= 3, "{}", whole.parts.len());
        for stored in 1..whole.parts.len() {
            let (before, after) = whole.parts.split_at(stored);
            let part = &before[stored - 1];
            assert!(part.until_us - stored.checked_sub(2).map_or(0, |at| before[at].until_us) <= 62_000_000);
            let tracks = before.iter().flat_map(|part| &part.tracks);
            let tracks = tracks.map(|track| track.number).max().unwrap_or(0);
            let resume = Resume { after_us: part.until_us, frames: part.frames, tracks };
            let rest = analyze(&analyzer, &path, &options, Some(resume)).await;
            let place = format!("{:?}, after part {stored}", options.sampling);
            assert_eq!(rest.times, whole.times[part.frames as usize..], "{place}");
            assert_eq!(rest.parts.len(), after.len(), "{place}");
            for (found, expected) in rest.parts.iter().zip(after) {
                assert_eq!((found.until_us, found.frames), (expected.until_us, expected.frames), "{place}");
                let of = |part: &VideoPart| part.tracks.iter().map(summary).collect::<Vec<_>>();
                assert_eq!(of(found), of(expected), "{place}");
            }
        }
    }
}
