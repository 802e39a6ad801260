//! Finds the faces in a folder of photographs, and the pairs of faces that belong to one person.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use inference::{Embedding, Priority};
use pipeline::{AnalyzeOptions, Analyzer};
use std::collections::HashMap;
use vision::{PerceptualHashes, Profile};

/// A face, its person if known, and its quality.
pub(crate) struct Face {
    pub(crate) file: String,
    pub(crate) person: Option<String>,
    pub(crate) passed: bool,
    pub(crate) strict: bool,
    pub(crate) hashes: PerceptualHashes,
    pub(crate) embedding: Embedding,
}

/// The relation of two faces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pair {
    /// Both faces belong to the same person, in two images that are not near-duplicates.
    Genuine,
    /// The faces are known to belong to two people, because they are in one photograph or because
    /// the list names different people.
    Certain,
    /// The faces are assumed to belong to two people, at least one of whom is unknown.
    Presumed,
}

/// Returns every face of the folder. `people` is a file with a line `FILE,PERSON` for every
/// photograph whose best face is known.
pub(crate) async fn faces(analyzer: &Analyzer, folder: &str, people: &str) -> Vec<Face> {
    let people: HashMap<String, String> = std::fs::read_to_string(people)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(',').map(|(file, person)| (file.to_owned(), person.to_owned())))
        .collect();
    let mut faces = Vec::new();
    for path in crate::common::files(folder) {
        let bytes = Bytes::from(std::fs::read(&path).unwrap());
        let Ok(analysis) = analyzer.analyze(bytes, &AnalyzeOptions::default(), Priority::Background).await
        else {
            continue;
        };
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        for (index, face) in analysis.faces.into_iter().enumerate() {
            let (Some(embedding), Some(quality)) = (face.embedding, face.quality) else { continue };
            let person = people.get(&file).filter(|_| index == 0).cloned();
            faces.push(Face {
                file: file.clone(),
                person,
                passed: quality.passed,
                strict: quality.unmet_limits(Profile::Strict).is_empty(),
                hashes: analysis.hashes,
                embedding,
            });
        }
    }
    faces
}

/// Calls `take` for each usable pair. Two versions of one photograph contain the same faces, so
/// pairs of them are skipped.
pub(crate) fn each_pair(faces: &[&Face], mut take: impl FnMut(Pair, &Face, &Face)) {
    for (at, a) in faces.iter().enumerate() {
        for b in &faces[at + 1..] {
            let near = a.hashes.is_near(&b.hashes);
            let pair = match (&a.person, &b.person) {
                (Some(one), Some(other)) if one == other => (!near).then_some(Pair::Genuine),
                (Some(_), Some(_)) => Some(Pair::Certain),
                _ if a.file == b.file => Some(Pair::Certain),
                _ => (!near).then_some(Pair::Presumed),
            };
            if let Some(pair) = pair {
                take(pair, a, b);
            }
        }
    }
}
