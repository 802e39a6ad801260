//! Decides which new faces match which watchlists. Does no I/O.
use domain::WatchNotify;
use store::watch::matching::{ActiveWatchlist, NewFaceToCompare, WatchedFace, WatchedFaces};
use store::watch::new_alerts::NewAlert;
use tracking::write_dot_products;
use vision::{Profile, QualityReport};

/// Number of watched faces in a block. All new faces of a batch are compared with one block before
/// the next one. With 512 components, a block fits in the second-level cache of a processor core.
const ROWS_PER_BLOCK: usize = 64;

/// A watched face that is similar enough to a new face.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    row: usize,
    /// Cosine similarity, -1 to 1.
    pub(crate) similarity: f32,
}

/// The result of comparing a new face with one watchlist.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// It reports the face, because it is similar to this watched face.
    Match(Candidate),
    /// It reports the face, because it is similar to nobody.
    Unknown,
    /// It reports unknown faces, and not this one, because it is similar to a watched face.
    Known,
}

/// Compares new faces with the watchlists of their collection. Returns, for each face, the results
/// with the indices of their watchlists. A watchlist without a result is left out. A face whose
/// embedding has another length than those of `watched` is compared with nothing.
pub(crate) fn verdicts(watched: &WatchedFaces, faces: &[NewFaceToCompare]) -> Vec<Vec<(usize, Verdict)>> {
    let is_comparable = |face: &&NewFaceToCompare| face.embedding.len() == watched.dimensions;
    let comparable: Vec<&NewFaceToCompare> = faces.iter().filter(is_comparable).collect();
    let mut best_of_faces = best_of_watchlists(watched, &comparable).into_iter();
    let mut of_face = |face: &NewFaceToCompare| {
        if !is_comparable(&face) {
            return Vec::new();
        }
        let quality: Option<QualityReport> =
            face.quality.as_ref().and_then(|quality| serde::Deserialize::deserialize(quality).ok());
        let best = best_of_faces.next().unwrap_or_default();
        let of_watchlist = |(watchlist, best): (&ActiveWatchlist, Option<Candidate>)| {
            if !applies(watchlist, face) {
                return None;
            }
            let passes = || passes(watchlist, face, quality.as_ref());
            match (watchlist.notify, best) {
                (WatchNotify::Match, Some(best)) => passes().then_some(Verdict::Match(best)),
                (WatchNotify::Match, None) => None,
                (WatchNotify::Unknown, Some(_)) => Some(Verdict::Known),
                (WatchNotify::Unknown, None) if face.enrolled_as.is_some() || face.is_brief => None,
                (WatchNotify::Unknown, None) => passes().then_some(Verdict::Unknown),
            }
        };
        let verdicts = watched.watchlists.iter().zip(best).map(of_watchlist).enumerate();
        verdicts.filter_map(|(index, verdict)| Some((index, verdict?))).collect()
    };
    faces.iter().map(&mut of_face).collect()
}

/// Compares new faces with the watchlists of their collection, and returns the alerts in the order
/// of the faces.
pub(crate) fn compare(watched: &WatchedFaces, faces: &[NewFaceToCompare]) -> Vec<NewAlert> {
    let mut alerts = Vec::new();
    for (face, verdicts) in faces.iter().zip(verdicts(watched, faces)) {
        for (index, verdict) in verdicts {
            let watchlist = &watched.watchlists[index];
            let matched = match verdict {
                Verdict::Match(matched) => Some(matched),
                Verdict::Unknown => None,
                Verdict::Known => continue,
            };
            let row = matched.and_then(|matched| watched.rows.get(matched.row));
            alerts.push(NewAlert {
                collection_id: face.entry.collection_id,
                watchlist_id: watchlist.id,
                face_id: face.entry.face_id,
                subject_id: row.and_then(|row| row.subject_id),
                watched_face_id: row.map(|row| row.face_id),
                similarity: matched.map(|matched| matched.similarity),
                has_webhook: watchlist.has_webhook,
                cooldown_seconds: watchlist.cooldown_seconds,
                stored_at: face.entry.stored_at,
                track_id: face.track_id,
            });
        }
    }
    alerts
}

/// Returns, for each new face, the most similar watched face of each watchlist, if it reaches the
/// threshold. A face is never compared with itself, nor with the person as whom its own transaction
/// enrolled it. With a low threshold, most watched faces reach it, so only the best is kept.
fn best_of_watchlists(watched: &WatchedFaces, faces: &[&NewFaceToCompare]) -> Vec<Vec<Option<Candidate>>> {
    let mut best = vec![vec![None; watched.watchlists.len()]; faces.len()];
    if watched.dimensions == 0 {
        return best;
    }
    let threshold = |row: &WatchedFace| {
        let thresholds =
            row.watchlists.iter().filter_map(|index| watched.watchlists.get(usize::from(*index)));
        thresholds.map(|watchlist| watchlist.threshold).fold(f32::INFINITY, f32::min)
    };
    let probes: Vec<f32> = faces.iter().flat_map(|face| face.embedding.iter().copied()).collect();
    let mut similarities = Vec::new();
    let blocks = watched.embeddings.chunks(ROWS_PER_BLOCK * watched.dimensions);
    for (block, embeddings) in blocks.enumerate() {
        let first = block * ROWS_PER_BLOCK;
        let rows = embeddings.len() / watched.dimensions;
        let thresholds: Vec<f32> = watched.rows.iter().skip(first).take(rows).map(threshold).collect();
        write_dot_products(&probes, embeddings, watched.dimensions, &mut similarities);
        for ((face, best), similarities) in faces.iter().zip(&mut best).zip(similarities.chunks(rows)) {
            for (offset, (similarity, threshold)) in similarities.iter().zip(&thresholds).enumerate() {
                if similarity >= threshold {
                    let candidate =
                        Candidate { row: first + offset, similarity: similarity.clamp(-1.0, 1.0) };
                    keep_if_better(watched, face, candidate, best);
                }
            }
        }
    }
    best
}

/// Replaces the best watched face of each watchlist for which `candidate` is better.
fn keep_if_better(
    watched: &WatchedFaces,
    face: &NewFaceToCompare,
    candidate: Candidate,
    best: &mut [Option<Candidate>],
) {
    let Some(row) = watched.rows.get(candidate.row) else { return };
    let is_own = row.subject_id.is_some() && row.subject_id == face.enrolled_as;
    if row.face_id == face.entry.face_id || is_own {
        return;
    }
    for index in row.watchlists.iter().map(|index| usize::from(*index)) {
        let reaches = watched.watchlists[index].threshold <= candidate.similarity;
        if reaches && best[index].is_none_or(|best| candidate.similarity > best.similarity) {
            best[index] = Some(candidate);
        }
    }
}

/// Returns whether the watchlist existed and had not expired when the face was stored. A watchlist
/// without embeddings of the model cannot tell who is unknown.
fn applies(watchlist: &ActiveWatchlist, face: &NewFaceToCompare) -> bool {
    watchlist.faces > 0
        && face.entry.id > watchlist.created_entry
        && watchlist.expires_at.is_none_or(|expires_at| face.entry.stored_at < expires_at)
}

/// Returns whether the face meets the quality profile of the watchlist.
fn passes(watchlist: &ActiveWatchlist, face: &NewFaceToCompare, quality: Option<&QualityReport>) -> bool {
    let Some(profile) = &watchlist.quality_profile else { return face.passed };
    let profile: Profile = serde_json::from_value(profile.as_str().into()).unwrap_or_default();
    profile == Profile::Off || quality.is_some_and(|quality| quality.unmet_limits(profile).is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use store::watch::matching::OutboxEntry;
    use time::OffsetDateTime;
    use uuid::Uuid;

    const STORED_AT: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    fn id(number: usize) -> Uuid {
        Uuid::from_u128(number as u128)
    }

    /// Returns a watchlist with the threshold 0.5.
    fn watchlist(number: usize, notify: WatchNotify) -> ActiveWatchlist {
        ActiveWatchlist {
            id: id(1_000 + number),
            notify,
            threshold: 0.5,
            quality_profile: None,
            has_webhook: false,
            cooldown_seconds: 0,
            expires_at: None,
            created_entry: 0,
            faces: 1,
        }
    }

    /// Returns watched faces on a circle: face n has the angle n degrees, and subject n.
    fn circle(watchlists: Vec<ActiveWatchlist>, angles: &[usize]) -> WatchedFaces {
        let indexes: Vec<u16> = (0..u16::try_from(watchlists.len()).unwrap()).collect();
        WatchedFaces {
            watchlists,
            rows: angles
                .iter()
                .map(|angle| WatchedFace {
                    face_id: id(100 + angle),
                    subject_id: Some(id(2_000 + angle)),
                    watchlists: indexes.clone(),
                })
                .collect(),
            embeddings: angles.iter().flat_map(|angle| at(*angle)).collect(),
            dimensions: 2,
            ..WatchedFaces::default()
        }
    }

    fn at(degrees: usize) -> [f32; 2] {
        let angle = (degrees as f32).to_radians();
        [angle.cos(), angle.sin()]
    }

    fn face(number: usize, degrees: usize) -> NewFaceToCompare {
        NewFaceToCompare {
            entry: OutboxEntry {
                id: i64::try_from(number).unwrap(),
                face_id: id(number),
                collection_id: id(1),
                stored_at: STORED_AT,
            },
            model_id: 1,
            embedding: at(degrees).to_vec(),
            quality: None,
            passed: true,
            enrolled_as: None,
            track_id: None,
            is_brief: false,
        }
    }

    #[test]
    fn most_similar_watched_face_over_threshold_matches() {
        let watched = circle(vec![watchlist(0, WatchNotify::Match)], &[0, 30, 200]);
        let alerts = compare(&watched, &[face(1, 20), face(2, 110), face(3, 210)]);
        let matched: Vec<_> = alerts.iter().map(|alert| (alert.face_id, alert.subject_id.unwrap())).collect();
        assert_eq!(matched, [(id(1), id(2_030)), (id(3), id(2_200))]);
        assert!((alerts[0].similarity.unwrap() - 10_f32.to_radians().cos()).abs() < 1e-6);
    }

    #[test]
    fn every_block_of_watched_faces_is_compared() {
        let angles: Vec<usize> = (0..3 * ROWS_PER_BLOCK + 1).collect();
        let watched = circle(vec![watchlist(0, WatchNotify::Match)], &angles);
        let faces: Vec<NewFaceToCompare> = angles.iter().map(|angle| face(1_000 + angle, *angle)).collect();
        let alerts = compare(&watched, &faces);
        let subjects: Vec<Uuid> = alerts.iter().filter_map(|alert| alert.subject_id).collect();
        assert_eq!(subjects, angles.iter().map(|angle| id(2_000 + angle)).collect::<Vec<_>>());
    }

    #[test]
    fn unknown_faces_are_those_that_match_nobody() {
        let lists = vec![watchlist(0, WatchNotify::Unknown), watchlist(1, WatchNotify::Match)];
        let watched = circle(lists, &[0]);
        let enrolled = NewFaceToCompare { enrolled_as: Some(id(7)), ..face(3, 180) };
        let brief = NewFaceToCompare { is_brief: true, ..face(4, 180) };
        let faces = [face(1, 180), face(2, 10), enrolled, brief];
        assert_eq!(verdicts(&watched, &faces)[1][0], (0, Verdict::Known));
        let alerts = compare(&watched, &faces);
        let found: Vec<_> = alerts.iter().map(|alert| (alert.watchlist_id, alert.face_id)).collect();
        assert_eq!(found, [(id(1_000), id(1)), (id(1_001), id(2))]);
        assert_eq!(
            (alerts[0].subject_id, alerts[0].watched_face_id, alerts[0].similarity),
            (None, None, None)
        );
    }

    #[test]
    fn face_is_not_compared_with_itself_or_its_own_enrolment() {
        let watched = circle(vec![watchlist(0, WatchNotify::Match)], &[0, 40]);
        let itself = face(100, 0);
        let enrolled = NewFaceToCompare { enrolled_as: Some(id(2_000)), ..face(2, 0) };
        for face in [itself, enrolled] {
            let alerts = compare(&watched, &[face]);
            assert_eq!(alerts.len(), 1);
            assert_eq!(alerts[0].subject_id, Some(id(2_040)), "only the other person matches");
        }
    }

    #[test]
    fn watchlist_ignores_earlier_expired_and_poor_faces() {
        let late = ActiveWatchlist { created_entry: 1, ..watchlist(0, WatchNotify::Match) };
        let expired = ActiveWatchlist { expires_at: Some(STORED_AT), ..watchlist(1, WatchNotify::Match) };
        let strict =
            ActiveWatchlist { quality_profile: Some("strict".into()), ..watchlist(2, WatchNotify::Match) };
        let off = ActiveWatchlist { quality_profile: Some("off".into()), ..watchlist(3, WatchNotify::Match) };
        let plain = watchlist(4, WatchNotify::Match);
        let watched = circle(vec![late, expired, strict, off, plain], &[0]);
        let lists = |face| -> Vec<Uuid> {
            compare(&watched, &[face]).into_iter().map(|alert| alert.watchlist_id).collect()
        };
        assert_eq!(lists(face(1, 0)), [id(1_003), id(1_004)]);
        assert_eq!(lists(face(2, 0)), [id(1_000), id(1_003), id(1_004)]);
        assert_eq!(lists(NewFaceToCompare { passed: false, ..face(1, 0) }), [id(1_003)]);
    }

    #[test]
    fn watchlist_without_embeddings_of_model_creates_no_alert() {
        let empty = ActiveWatchlist { faces: 0, ..watchlist(0, WatchNotify::Unknown) };
        let watched = circle(vec![empty], &[]);
        assert_eq!(compare(&watched, &[face(1, 0)]), []);
        let watched = circle(vec![watchlist(0, WatchNotify::Unknown)], &[0]);
        let other_model = NewFaceToCompare { embedding: vec![1.0], ..face(1, 0) };
        assert_eq!(compare(&watched, &[other_model]), []);
    }
}
