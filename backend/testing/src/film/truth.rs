//! The result of a perfect analysis of a film.
use super::Encoding;
use super::script::Film;
use serde::Serialize;
use vision::Rect;

/// Share of a face that must be visible for a detector to find it.
const MIN_CLEAR_SHARE: f32 = 0.7;

/// Share of a face that must be visible for the face to be listed at all.
const MIN_LISTED_SHARE: f32 = 0.1;

/// Longest time in seconds for which a person may be hidden or outside the frame within one track.
const MAX_GAP: f32 = 1.0;

/// The exact contents of a film in a file.
#[derive(Clone, Debug, Serialize)]
pub struct Truth {
    /// Width of the upright frame in pixels.
    pub width: u32,
    /// Height of the upright frame in pixels.
    pub height: u32,
    pub frames: Vec<TruthFrame>,
    /// All tracks, by start and then by person.
    pub tracks: Vec<Track>,
    /// Times of the first frame after each hard cut, in microseconds.
    pub cuts: Vec<i64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TruthFrame {
    /// Number of the frame, from 0. The pixels contain its lowest 16 bits.
    pub index: u32,
    /// Timestamp in the file, in microseconds.
    pub at_us: i64,
    /// The faces, from back to front. Faces of which less than a tenth is visible are absent.
    pub faces: Vec<Appearance>,
}

/// A face in a frame.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Appearance {
    pub person: u32,
    /// The box in which a detector finds the face, clipped to the frame, in pixels.
    pub bbox: Rect,
    /// Share of the face that is inside the frame and that no other person covers, 0.1 to 1.
    pub visible: f32,
}

/// A person from entering a shot to leaving it, even if hidden for up to a second. A cut ends it.
#[derive(Clone, Debug, Serialize)]
pub struct Track {
    pub person: u32,
    /// Timestamp of the first frame in which a detector can find the face, in microseconds.
    pub start_us: i64,
    /// Timestamp of the last such frame, in microseconds.
    pub end_us: i64,
    /// Timestamp and box of each such frame.
    pub boxes: Vec<(i64, Rect)>,
}

impl Appearance {
    /// Returns whether enough of the face is visible for a detector to find it.
    pub fn is_clear(&self) -> bool {
        self.visible >= MIN_CLEAR_SHARE
    }
}

impl Film {
    /// Returns the contents of the file that [`Film::encode`] writes with this encoding.
    pub fn truth(&self, encoding: &Encoding) -> Truth {
        let frames: Vec<TruthFrame> = (0..self.length())
            .map(|index| TruthFrame { index, at_us: self.at_us(index, encoding), faces: self.faces(index) })
            .collect();
        let cuts = self.cuts();
        let tracks = find_tracks(&frames, &cuts);
        let cuts = cuts.iter().map(|&index| frames[index as usize].at_us).collect();
        Truth { width: self.width, height: self.height, frames, tracks, cuts }
    }

    /// Returns the timestamp of frame `index` in a file, in microseconds.
    pub fn at_us(&self, index: u32, encoding: &Encoding) -> i64 {
        let unit = encoding.container.ticks_per_second(&self.timing);
        let ticks = self.timing.at(index, unit);
        encoding.start_us() + (ticks * 2_000_000 + i64::from(unit)) / (2 * i64::from(unit))
    }

    /// Returns the faces of a frame, from back to front.
    fn faces(&self, index: u32) -> Vec<Appearance> {
        let placed = self.people_in_frame(index);
        let frame = Rect { x: 0.0, y: 0.0, width: self.width as f32, height: self.height as f32 };
        let faces = placed.iter().enumerate().map(|(at, placed_person)| {
            let face = placed_person.face();
            let visible = self.visible_share(&face, &placed[at + 1..]);
            Appearance { person: placed_person.head.person, bbox: face.intersection(&frame), visible }
        });
        faces.filter(|face| face.visible >= MIN_LISTED_SHARE).collect()
    }
}

fn find_tracks(frames: &[TruthFrame], cuts: &[u32]) -> Vec<Track> {
    let mut open: Vec<Track> = Vec::new();
    let mut closed = Vec::new();
    for frame in frames {
        if cuts.contains(&frame.index) {
            closed.append(&mut open);
        }
        for face in frame.faces.iter().filter(|face| face.is_clear()) {
            let point = (frame.at_us, face.bbox);
            let new = Track { person: face.person, start_us: point.0, end_us: point.0, boxes: vec![point] };
            match open.iter_mut().find(|track| track.person == face.person) {
                Some(track) if (point.0 - track.end_us) as f32 <= MAX_GAP * 1e6 => {
                    track.end_us = point.0;
                    track.boxes.push(point);
                }
                Some(track) => closed.push(std::mem::replace(track, new)),
                None => open.push(new),
            }
        }
    }
    closed.append(&mut open);
    closed.sort_by_key(|track| (track.start_us, track.person));
    closed
}
