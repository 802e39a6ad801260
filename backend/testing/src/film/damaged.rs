//! Damaged video files: short films of several codecs and containers, damaged at random.

use super::{Codec, Container, Encoding, Film, MovieIndex};
use crate::damage::{Random, damage};

/// Names of boxes of MP4 files, and identifiers of elements of other formats. A length is stored
/// next to each of them.
const NAMES: [&[u8]; 12] = [
    b"moov", b"trak", b"stbl", b"stsd", b"stsz", b"stco", b"ctts", b"stts", b"avcC", b"moof", b"idx1",
    b"LIST",
];

/// Damages films of 12 frames. The same number always returns the same file.
#[derive(Debug)]
pub struct DamagedFilms {
    films: Vec<Vec<u8>>,
}

impl DamagedFilms {
    /// Encodes the undamaged films, one for each of eleven pairs of a codec and a container. Panics
    /// if ffmpeg fails.
    pub fn encode() -> Self {
        let mut film = Film::short();
        film.shots.truncate(1);
        film.shots[0].frames = 12;
        let mp4 = Encoding::new(Codec::H264, Container::Mp4);
        let encodings = [
            mp4.clone(),
            Encoding { index: MovieIndex::Fragments, ..mp4 },
            Encoding::new(Codec::Hevc, Container::Mp4),
            Encoding::new(Codec::H264, Container::Ts),
            Encoding::new(Codec::Mpeg2, Container::Ts),
            Encoding::new(Codec::H264, Container::Mkv),
            Encoding::new(Codec::Vp8, Container::WebM),
            Encoding::new(Codec::Vp9, Container::WebM),
            Encoding::new(Codec::Av1, Container::Mkv),
            Encoding::new(Codec::Mpeg4, Container::Avi),
            Encoding::new(Codec::Mjpeg, Container::Avi),
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let read = |encoding: &Encoding| {
            let path = folder.path().join("film").with_extension(encoding.container.extension());
            film.encode(encoding, &path).expect("a film");
            std::fs::read(path).expect("its file")
        };
        Self { films: encodings.iter().map(read).collect() }
    }

    pub fn file(&self, number: usize) -> Vec<u8> {
        let random = &mut Random::new(number as u64 + 1);
        let film = &self.films[number % self.films.len()];
        if random.below(3) > 0 {
            return damage(film, random);
        }
        let mut bytes = film.clone();
        let lengths: Vec<usize> =
            (4..bytes.len() - 4).filter(|at| NAMES.contains(&&bytes[*at..at + 4])).collect();
        let at = match lengths.get(random.below(lengths.len())) {
            Some(name) => name + [0, 4, 8, 12][random.below(4)] - 4,
            None => random.below(bytes.len().min(400)),
        };
        let value = [random.bits() as u32, random.below(64) as u32, u32::MAX, 1 << 31][random.below(4)];
        let end = (at + 4).min(bytes.len());
        bytes[at..end].copy_from_slice(&value.to_be_bytes()[..end - at]);
        bytes
    }

    /// Returns the sampling for the file with this number. Files of each film get all samplings.
    pub fn sampling(&self, number: usize) -> &'static str {
        ["auto", "fps=30", "keyframes"][number / self.films.len() % 3]
    }
}
