//! The memory for the pictures of a part, and where the part then ends.

use crate::support::analyzer;
use crate::videos::decoder;
use inference::Priority;
use pipeline::{Analyzer, FrameFaces, Resume, VideoAnalyzeError, VideoOptions, VideoPart, VideoParts};
use std::fs::File;
use std::path::Path;
use testing::film::{Codec, Container, Encoding, Film};
use video::{Index, Sampling};

const PICTURES: u64 = 3 << 19;
/// Memory for the pictures of one frame: at most eight faces with a crop and a chip.
const OF_FRAME: usize = 8 * (256 * 256 + 112 * 112) * 3;

#[derive(Default)]
struct Parts(Vec<VideoPart>);

#[async_trait::async_trait]
impl VideoParts for Parts {
    type Error = VideoAnalyzeError;

    async fn opened(&mut self, _: &Index) -> Result<(), VideoAnalyzeError> {
        Ok(())
    }

    fn frame(&mut self, _: FrameFaces<'_>) {}

    async fn part(&mut self, part: VideoPart) -> Result<(), VideoAnalyzeError> {
        self.0.push(part);
        Ok(())
    }
}

async fn parts(
    analyzer: &Analyzer,
    film: &Path,
    bytes: Option<u64>,
    resume: Option<Resume>,
) -> Vec<VideoPart> {
    let mut options =
        VideoOptions { sampling: Sampling::Fps(5.0), pictures: true, ..VideoOptions::default() };
    options.max_picture_bytes = bytes.unwrap_or(options.max_picture_bytes);
    let (file, priority, mut parts) = (File::open(film).unwrap(), Priority::Background, Parts::default());
    analyzer.analyze_parts(&decoder(), file, &options, priority, resume, &mut parts).await.unwrap();
    parts.0
}

/// Number, start, end and number of frames of a track.
type Summary = (u32, i64, i64, u32);

/// Returns what must not depend on interruptions.
fn summaries(parts: &[VideoPart]) -> Vec<(i64, u64, Vec<Summary>)> {
    let tracks = |part: &VideoPart| {
        let of =
            |track: &pipeline::VideoTrack| (track.number, track.started_us, track.ended_us, track.samples);
        part.tracks.iter().map(of).collect()
    };
    parts.iter().map(|part| (part.until_us, part.frames, tracks(part))).collect()
}

fn samples(parts: &[VideoPart]) -> u32 {
    parts.iter().flat_map(|part| &part.tracks).map(|track| track.samples).sum()
}

#[testing::needs(video)]
#[testing::test]
async fn a_part_whose_pictures_take_too_much_memory_ends_early() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film.mkv");
    Film::standard().encode(&Encoding::new(Codec::H264, Container::Mkv), &path).unwrap();
    let analyzer = analyzer().await;
    let whole = parts(&analyzer, &path, None, None).await;
    assert_eq!((whole.len(), whole[0].frames), (1, 126));

    let bounded = parts(&analyzer, &path, Some(PICTURES), None).await;
    assert!(bounded.len() > 2, "{}", bounded.len());
    assert_eq!(bounded.last().unwrap().frames, 126);
    // Nothing is lost except a few faces that only continue a track.
    assert!(samples(&bounded) * 100 >= samples(&whole) * 90, "{} {}", samples(&bounded), samples(&whole));
    for part in &bounded {
        let shots = part.tracks.iter().flat_map(|track| &track.faces);
        let pictures = shots.filter_map(|shot| shot.pictures.as_ref());
        let bytes: usize = pictures.map(|pair| pair.chip.data().len() + pair.crop.data().len()).sum();
        assert!(bytes <= PICTURES as usize + OF_FRAME, "{bytes}");
    }

    // An analysis that continues after a part finds the same parts.
    for (at, part) in bounded.iter().enumerate().take(2) {
        let tracks = bounded[..=at].iter().map(|part| part.tracks.len() as u32).sum();
        let resume = Resume { after_us: part.until_us, frames: part.frames, tracks };
        let rest = parts(&analyzer, &path, Some(PICTURES), Some(resume)).await;
        assert_eq!(summaries(&rest), summaries(&bounded[at + 1..]));
    }
}
