//! Decides which faces of a camera are stored. An appearance is a track: the face of one person in
//! successive frames. Does no I/O.
use crate::streams::watched::{Comparison, WatchlistMatch};
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
    /// The watchlists with `notify: unknown` to which at least one face was similar.
    known_to: HashSet<Uuid>,
    /// The watchlists for which a matching face was stored.
    reported: HashSet<Uuid>,
    is_stored: bool,
    /// The best face that was not stored and matches a watchlist.
    matching: Option<Shot<S>>,
    /// The best face that matches no watchlist and may be stored.
    unmatched: Option<Shot<S>>,
}

#[derive(Debug)]
struct Shot<S> {
    quality: f32,
    matches: HashSet<Uuid>,
    /// The watchlists that would report the face as unknown.
    unknown_to: HashSet<Uuid>,
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
            known_to: HashSet::new(),
            reported: HashSet::new(),
            is_stored: false,
            matching: None,
            unmatched: None,
        });
        appearance.last_us = at_us;
        appearance.passing += 1;
        appearance.known_to.extend(&comparison.known_to);
        let is_near = |found: &&WatchlistMatch| found.margin >= ROUNDING;
        let matches: HashSet<Uuid> =
            comparison.matches.iter().filter(is_near).map(|found| found.watchlist).collect();
        for watchlist in &matches {
            *appearance.matches.entry(*watchlist).or_default() += 1;
        }
        let is_clear = |watchlist: &Uuid| {
            comparison
                .matches
                .iter()
                .any(|found| found.watchlist == *watchlist && found.margin >= self.margin)
        };
        let confirmed = matches.iter().find(|watchlist| {
            !appearance.reported.contains(*watchlist)
                && (is_clear(watchlist) || appearance.matches.get(*watchlist) >= Some(&CONFIRMATIONS))
        });
        let confirmed = confirmed.copied();
        let unknown_to = comparison.unknown_to.iter().copied().collect();
        let shot = Shot { quality, matches, unknown_to, shot };
        if !shot.matches.is_empty() {
            appearance.offer_matching(shot, confirmed);
        } else if self.store != StreamStore::Matches && !appearance.is_stored {
            appearance.offer_unmatched(shot);
        }
        if let Some(watchlist) = confirmed {
            let shot = appearance.matching.take_if(|shot| shot.matches.contains(&watchlist))?;
            return Some(appearance.store(track, shot));
        }
        let stays = at_us.saturating_sub(appearance.started_us) >= MIN_STAY.as_micros() as i64;
        if stays && appearance.passing >= UNKNOWN_FACES && appearance.matches.is_empty() {
            let shot = appearance.take_unmatched(self.store)?;
            return Some(appearance.store(track, shot));
        }
        None
    }

    /// Ends a track. Returns its best face if the camera stores all faces and no face of this track
    /// was stored.
    pub(crate) fn end(&mut self, track: u64) -> Option<Decision<S>> {
        let mut appearance = self.open.remove(&track)?;
        if self.store != StreamStore::All || appearance.is_stored || appearance.passing < CONFIRMATIONS {
            return None;
        }
        // A face that matches would be reported, although no second one has confirmed the match.
        let shot = appearance.take_unmatched(self.store).or(appearance.matching.take())?;
        Some(appearance.store(track, shot))
    }
}

impl<S> Appearance<S> {
    /// Returns whether a watchlist that knows the person would report this face as unknown.
    fn contradicts(&self, shot: &Shot<S>) -> bool {
        !shot.unknown_to.is_disjoint(&self.known_to)
    }

    /// Keeps the better one of two faces that match. A face that matches the watchlist `needed` is
    /// better than one that does not.
    fn offer_matching(&mut self, new: Shot<S>, needed: Option<Uuid>) {
        let value = |shot: &Shot<S>| {
            let is_usable = needed.is_none_or(|watchlist| shot.matches.contains(&watchlist));
            (is_usable, !self.contradicts(shot), shot.quality)
        };
        if self.matching.as_ref().is_none_or(|best| value(&new) >= value(best)) {
            self.matching = Some(new);
        }
    }

    /// Keeps the better one of two faces that do not match. Prefers a face that no watchlist of
    /// `known_to` would report as unknown, then one that a watchlist reports, then the better
    /// quality.
    fn offer_unmatched(&mut self, new: Shot<S>) {
        let value = |shot: &Shot<S>| (!self.contradicts(shot), !shot.unknown_to.is_empty(), shot.quality);
        if self.unmatched.as_ref().is_none_or(|best| value(&new) >= value(best)) {
            self.unmatched = Some(new);
        }
    }

    /// Takes the best face without a match, if the camera stores it and it contradicts nothing.
    fn take_unmatched(&mut self, store: StreamStore) -> Option<Shot<S>> {
        let is_wanted = |shot: &Shot<S>| match store {
            StreamStore::Matches => false,
            StreamStore::Alerts => !shot.unknown_to.is_empty(),
            StreamStore::All => true,
        };
        let is_usable = |shot: &Shot<S>| is_wanted(shot) && shot.unknown_to.is_disjoint(&self.known_to);
        self.unmatched.take_if(|shot| is_usable(shot))
    }

    fn store(&mut self, track: u64, shot: Shot<S>) -> Decision<S> {
        self.reported.extend(shot.matches);
        self.is_stored = true;
        self.unmatched = None;
        Decision { track, started_us: self.started_us, ended_us: self.last_us, shot: shot.shot }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MARGIN: f32 = 0.1;

    fn list(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn matching(margins: &[(u128, f32)]) -> Comparison {
        let matches = margins
            .iter()
            .map(|(number, margin)| WatchlistMatch { watchlist: list(*number), margin: *margin });
        Comparison { matches: matches.collect(), ..Comparison::default() }
    }

    /// The comparison of a face that the watchlist 9 would report as unknown.
    fn unknown() -> Comparison {
        Comparison { unknown_to: vec![list(9)], ..Comparison::default() }
    }

    /// The comparison of a face that the watchlist 9 knows.
    fn known() -> Comparison {
        Comparison { known_to: vec![list(9)], ..Comparison::default() }
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

    #[test]
    fn known_person_is_not_unknown_in_poor_frame() {
        let mut faces = vec![(0.9, known())];
        faces.extend((0..9).map(|_| (0.5, unknown())));
        assert_eq!(stored(StreamStore::Alerts, &faces), [0usize; 0]);
        // If all faces are stored, it is the one that no watchlist reports.
        assert_eq!(stored(StreamStore::All, &faces), [0]);
        // The same if the person is recognised later.
        let faces = [(0.9, unknown()), (0.9, unknown()), (0.2, known()), (0.9, unknown())];
        assert_eq!(stored(StreamStore::Alerts, &faces), [0usize; 0]);
        assert_eq!(stored(StreamStore::All, &faces), [2]);
        // Another watchlist does not know the person.
        let both = Comparison { unknown_to: vec![list(8)], ..known() };
        let faces =
            [(0.9, unknown()), (0.2, both.clone()), (0.3, both.clone()), (0.9, unknown()), (0.2, both)];
        assert_eq!(stored(StreamStore::Alerts, &faces), [2]);
    }

    #[test]
    fn unconfirmed_match_is_not_stored_with_all_faces() {
        let faces =
            [(0.5, Comparison::default()), (0.9, matching(&[(1, 0.02)])), (0.4, Comparison::default())];
        assert_eq!(stored(StreamStore::All, &faces), [0]);
    }
}
