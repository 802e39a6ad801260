//! Decides which faces of a camera are stored. An appearance is a track: the face of one person in
//! successive frames. Does no I/O.
use crate::streams::watched::Comparison;
use domain::StreamStore;
use std::collections::{HashMap, HashSet};
use store::watch::matching::MIN_STAY;
use uuid::Uuid;

/// Number of faces of a track that must match before it is stored, if none matches clearly.
const CONFIRMATIONS: u32 = 2;
/// Number of faces that meet the quality profile before a track can be unknown.
const UNKNOWN_FACES: u32 = 3;
/// Stored embeddings are rounded to half precision. A similarity that exceeds the threshold by less
/// could fall below it.
const ROUNDING: f32 = 0.001;

/// What a camera knows about a person that it sees.
#[derive(Debug)]
struct Appearance<S> {
    started_us: i64,
    last_us: i64,
    /// Number of faces that meet the quality profile.
    passing: u32,
    /// Number of faces that matched each watchlist.
    matches: HashMap<Uuid, u32>,
    /// The watchlists for which a matching face was stored.
    reported: HashSet<Uuid>,
    is_stored: bool,
    /// The best face that was not stored, with its quality and its matches.
    best: Option<Shot<S>>,
}

#[derive(Debug)]
struct Shot<S> {
    quality: f32,
    matches: HashSet<Uuid>,
    shot: S,
}

/// A face that must be stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision<S> {
    /// The track of the face.
    pub(crate) track: u64,
    /// Time of the first frame of the track, in microseconds.
    pub(crate) started_us: i64,
    /// Time of its last frame so far.
    pub(crate) ended_us: i64,
    pub(crate) shot: S,
}

/// The appearances of one camera. `S` is the data that a stored face needs.
#[derive(Debug)]
pub(crate) struct Appearances<S> {
    store: StreamStore,
    /// Amount above the threshold with which one face suffices.
    margin: f32,
    open: HashMap<u64, Appearance<S>>,
}

impl<S> Appearances<S> {
    pub(crate) fn new(store: StreamStore, margin: f32) -> Self {
        Self { store, margin, open: HashMap::new() }
    }

    /// Adds a face of a track that meets the quality profile, and returns a face of this track that
    /// must be stored now, if any.
    pub(crate) fn add(
        &mut self,
        track: u64,
        (started_us, at_us): (i64, i64),
        quality: f32,
        comparison: &Comparison,
        shot: S,
    ) -> Option<Decision<S>> {
        let appearance = self.open.entry(track).or_insert_with(|| Appearance {
            started_us,
            last_us: at_us,
            passing: 0,
            matches: HashMap::new(),
            reported: HashSet::new(),
            is_stored: false,
            best: None,
        });
        appearance.last_us = at_us;
        appearance.passing += 1;
        let matching: HashSet<Uuid> = comparison
            .matches
            .iter()
            .filter(|found| found.margin >= ROUNDING)
            .map(|found| found.watchlist)
            .collect();
        for watchlist in &matching {
            *appearance.matches.entry(*watchlist).or_default() += 1;
        }
        let is_clear = |watchlist: &Uuid| {
            comparison
                .matches
                .iter()
                .any(|found| found.watchlist == *watchlist && found.margin >= self.margin)
        };
        let confirmed = matching.iter().find(|watchlist| {
            !appearance.reported.contains(*watchlist)
                && (is_clear(watchlist) || appearance.matches.get(*watchlist) >= Some(&CONFIRMATIONS))
        });
        let confirmed = confirmed.copied();
        appearance.offer(Shot { quality, matches: matching, shot }, confirmed);
        if let Some(watchlist) = confirmed {
            return appearance.take(track, |shot| shot.matches.contains(&watchlist));
        }
        let stays = at_us.saturating_sub(appearance.started_us) >= MIN_STAY.as_micros() as i64;
        let is_unknown = appearance.matches.is_empty() && !comparison.unknown_to.is_empty();
        let is_wanted = match self.store {
            StreamStore::Matches => false,
            StreamStore::Alerts => is_unknown,
            StreamStore::All => appearance.matches.is_empty(),
        };
        if is_wanted && stays && appearance.passing >= UNKNOWN_FACES && !appearance.is_stored {
            return appearance.take(track, |_| true);
        }
        None
    }

    /// Ends a track. Returns its best face if the camera stores all faces and no face of this track
    /// was stored.
    pub(crate) fn end(&mut self, track: u64) -> Option<Decision<S>> {
        let mut appearance = self.open.remove(&track)?;
        let is_wanted = self.store == StreamStore::All && !appearance.is_stored;
        (is_wanted && appearance.passing >= CONFIRMATIONS).then(|| appearance.take(track, |_| true)).flatten()
    }
}

impl<S> Appearance<S> {
    /// Keeps the better one of two faces. A face that matches the watchlist `needed` is better than
    /// one that does not.
    fn offer(&mut self, new: Shot<S>, needed: Option<Uuid>) {
        let is_usable = |shot: &Shot<S>| needed.is_none_or(|watchlist| shot.matches.contains(&watchlist));
        let value = |shot: &Shot<S>| (is_usable(shot), !shot.matches.is_empty(), shot.quality);
        if self.best.as_ref().is_none_or(|best| value(&new) >= value(best)) {
            self.best = Some(new);
        }
    }

    /// Takes the best face if it is usable, and adds the watchlists that it matches to `reported`.
    fn take(&mut self, track: u64, is_usable: impl Fn(&Shot<S>) -> bool) -> Option<Decision<S>> {
        let shot = self.best.take_if(|shot| is_usable(shot))?;
        self.reported.extend(shot.matches);
        self.is_stored = true;
        Some(Decision { track, started_us: self.started_us, ended_us: self.last_us, shot: shot.shot })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::streams::watched::WatchlistMatch;

    const MARGIN: f32 = 0.1;

    fn list(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn matching(margins: &[(u128, f32)]) -> Comparison {
        let matches = margins
            .iter()
            .map(|(number, margin)| WatchlistMatch { watchlist: list(*number), margin: *margin });
        Comparison { matches: matches.collect(), unknown_to: Vec::new() }
    }

    fn unknown() -> Comparison {
        Comparison { matches: Vec::new(), unknown_to: vec![list(9)] }
    }

    /// Adds one face every half second, and returns the numbers of the stored ones.
    fn stored(store: StreamStore, faces: &[(f32, Comparison)]) -> Vec<usize> {
        let mut appearances = Appearances::new(store, MARGIN);
        let mut stored = Vec::new();
        for (number, (quality, comparison)) in faces.iter().enumerate() {
            let at_us = number as i64 * 500_000;
            stored
                .extend(appearances.add(1, (0, at_us), *quality, comparison, number).map(|found| found.shot));
        }
        stored.extend(appearances.end(1).map(|found| found.shot));
        stored
    }

    #[test]
    fn two_matching_faces_or_a_clear_one_are_stored_once() {
        let weak = || matching(&[(1, 0.02)]);
        let clear = || matching(&[(1, 0.2)]);
        assert_eq!(stored(StreamStore::Matches, &[(0.5, weak())]), [0usize; 0]);
        // The better one of the two faces is stored.
        assert_eq!(stored(StreamStore::Matches, &[(0.5, weak()), (0.4, weak()), (0.9, weak())]), [0]);
        assert_eq!(stored(StreamStore::Matches, &[(0.5, clear()), (0.9, clear()), (0.9, clear())]), [0]);
        // Too close to the threshold: the stored embedding could fall below it.
        let rounded = || matching(&[(1, 0.0005)]);
        assert_eq!(stored(StreamStore::Matches, &[(0.5, rounded()), (0.5, rounded())]), [0usize; 0]);
    }

    #[test]
    fn later_watchlist_gets_another_face() {
        let faces = [
            (0.5, matching(&[(1, 0.2)])),
            (0.5, matching(&[(1, 0.2), (2, 0.02)])),
            (0.6, matching(&[(1, 0.2), (2, 0.03)])),
            (0.9, matching(&[(1, 0.2), (2, 0.03)])),
        ];
        assert_eq!(stored(StreamStore::Matches, &faces), [0, 2]);
    }

    #[test]
    fn unmatched_faces_are_stored_only_if_configured() {
        let stays = |count| (0..count).map(|_| (0.5, unknown())).collect::<Vec<_>>();
        let nobody = |count| (0..count).map(|_| (0.5, Comparison::default())).collect::<Vec<_>>();
        assert_eq!(stored(StreamStore::Matches, &stays(9)), [0usize; 0]);
        // 2 s are the fifth face.
        assert_eq!(stored(StreamStore::Alerts, &stays(4)), [0usize; 0]);
        assert_eq!(stored(StreamStore::Alerts, &stays(9)), [4]);
        assert_eq!(stored(StreamStore::Alerts, &nobody(9)), [0usize; 0]);
        assert_eq!(stored(StreamStore::All, &nobody(9)), [4]);
        // At the end of a shorter track.
        assert_eq!(stored(StreamStore::All, &nobody(2)), [1]);
        assert_eq!(stored(StreamStore::All, &nobody(1)), [0usize; 0]);
    }

    #[test]
    fn matched_person_is_not_unknown_later() {
        let mut faces = vec![(0.5, matching(&[(1, 0.02)]))];
        faces.extend((0..9).map(|_| (0.9, unknown())));
        assert_eq!(stored(StreamStore::Alerts, &faces), [0usize; 0]);
    }
}
