//! Damages files at random: truncates or overwrites them, flips bits, removes or duplicates pieces.
//! Also provides short films of several formats that are damaged in this way.
use crate::film::{Codec, Container, Encoding, Film, MovieIndex};

/// A random number generator (xorshift64*) that returns the same numbers in every run.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed, which should differ between cases.
    pub fn new(seed: u64) -> Self {
        Self(0x9E37_79B9_7F4A_7C15 ^ seed)
    }

    /// Returns 48 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// Returns a number below `limit`, or 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.bits() as usize % limit.max(1)
    }
}

/// Returns a copy of the file, damaged in one to five places. The result is never empty.
pub fn damage(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(4) {
        // Half of the damage affects the header, which influences decoding most.
        let limit = if random.below(2) == 0 { out.len().min(64) } else { out.len() };
        let at = random.below(limit);
        match random.below(7) {
            0 => out.truncate(at.max(1)),
            1 => out[at] ^= 1 << random.below(8),
            2 => out[at] = random.bits() as u8,
            3 => out[at] = [0, 0xFF, 0x7F, 0x80][random.below(4)],
            4 => {
                let end = (at + 1 + random.below(8)).min(out.len());
                out.drain(at..end);
            }
            5 => {
                let piece = out[at..(at + 1 + random.below(16)).min(out.len())].to_vec();
                let to = random.below(out.len());
                out.splice(to..to, piece);
            }
            _ => {
                let end = (at + 4).min(out.len());
                out[at..end].fill(0xFF);
            }
        }
        if out.is_empty() {
            out.push(0);
        }
    }
    out
}

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
        let encode_film = |encoding: &Encoding| {
            let path = folder.path().join("film").with_extension(encoding.container.extension());
            film.encode(encoding, &path).expect("a film");
            std::fs::read(path).expect("its file")
        };
        Self { films: encodings.iter().map(encode_film).collect() }
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
