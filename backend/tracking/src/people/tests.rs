use super::*;
use proptest::prelude::*;

/// Returns a unit vector of four numbers: the person, and a deviation.
fn face(person: usize, deviation: f32) -> Arc<[f32]> {
    let mut values = vec![0.0; 4];
    values[person] = (1.0 - deviation * deviation).sqrt();
    values[3] = deviation;
    Arc::from(values)
}

fn shown(started_us: i64, ended_us: i64, embeddings: Vec<Arc<[f32]>>) -> Appearance {
    Appearance { started_us, ended_us, embeddings }
}

#[test]
fn tracks_of_one_person_get_one_number() {
    let list = [
        shown(500, 900, vec![face(1, 0.2)]),
        shown(0, 100, vec![face(0, 0.1), face(0, -0.1)]),
        shown(200, 400, vec![face(0, 0.3)]),
        shown(600, 700, vec![]),
        shown(1000, 1100, vec![face(1, 0.0)]),
    ];
    assert_eq!(number_people(&list, 0.5).unwrap(), [Some(1), Some(0), Some(0), None, Some(1)]);
}

#[test]
fn tracks_at_the_same_time_are_different_people() {
    let twins = [shown(0, 100, vec![face(0, 0.0)]), shown(100, 200, vec![face(0, 0.0)])];
    assert_eq!(number_people(&twins, 0.5).unwrap(), [Some(0), Some(1)]);
    // The third fits both, but can be only one of them.
    let three = [twins[0].clone(), twins[1].clone(), shown(300, 400, vec![face(0, 0.0)])];
    let numbers = number_people(&three, 0.5).unwrap();
    assert_eq!(numbers.iter().flatten().max(), Some(&1));
}

#[test]
fn one_misleading_shot_connects_nobody() {
    let between: Arc<[f32]> = Arc::from([0.5f32.sqrt(), 0.5f32.sqrt(), 0.0, 0.0]);
    let list = [
        shown(0, 100, vec![face(0, 0.0), face(0, 0.1), between.clone()]),
        shown(200, 300, vec![face(1, 0.0), face(1, 0.1), between]),
    ];
    assert_eq!(number_people(&list, 0.5).unwrap(), [Some(0), Some(1)]);
}

#[test]
fn unusable_embeddings_and_too_many_tracks() {
    let odd = [
        shown(0, 1, vec![Arc::from([f32::NAN; 4]), Arc::from([])]),
        shown(2, 3, vec![face(0, 0.0)]),
        shown(4, 5, vec![Arc::from([1.0f32, 0.0])]),
        shown(9, 6, vec![face(0, 0.0)]),
    ];
    assert_eq!(number_people(&odd, 0.5).unwrap(), [None, Some(0), None, Some(0)]);
    assert_eq!(number_people(&[], 0.5).unwrap(), []);
    let many = vec![shown(0, 1, vec![]); MAX_TRACKS + 1];
    assert_eq!(number_people(&many, 0.5), Err(TooManyTracks(MAX_TRACKS + 1)));
}

#[test]
fn more_tracks_of_one_person_than_neighbours_are_one_group() {
    let list: Vec<_> =
        (0..700).map(|i| shown(i * 10, i * 10 + 5, vec![face(0, (i % 7) as f32 * 0.05)])).collect();
    assert!(number_people(&list, 0.5).unwrap().iter().all(|number| *number == Some(0)));
}

proptest! {
    #[test]
    fn the_rules_hold_in_any_order(
        list in prop::collection::vec((0..3usize, -0.6..0.6f32, 0..400i64, 1..60i64), 0..40),
        turn in 0..40usize,
    ) {
        let all: Vec<_> = list.iter().map(|&(p, d, start, length)| shown(start, start + length, vec![face(p, d)])).collect();
        let numbers = number_people(&all, 0.6).unwrap();
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate().skip(i + 1) {
                let together = a.started_us <= b.ended_us && b.started_us <= a.ended_us;
                prop_assert!(!(together && numbers[i] == numbers[j]));
            }
        }
        let turn = turn % all.len().max(1);
        let (mut turned, mut expected) = (all.clone(), numbers.clone());
        turned.rotate_left(turn);
        expected.rotate_left(turn);
        prop_assert_eq!(number_people(&turned, 0.6).unwrap(), expected);
    }
}
