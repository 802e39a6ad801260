//! The faces of a folder of photographs, and which pairs of them are one person.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use inference::{Embedding, Lane};
use pipeline::{AnalyzeOptions, Analyzer};
use std::collections::HashMap;
use vision::{PerceptualHashes, Profile};

/// A face, and what is known of it.
pub(crate) struct Face {
    pub(crate) file: String,
    pub(crate) person: Option<String>,
    pub(crate) passed: bool,
    pub(crate) strict: bool,
    pub(crate) hashes: PerceptualHashes,
    pub(crate) embedding: Embedding,
}

/// What two faces are to each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pair {
    /// One person, in two pictures that are no near-duplicates.
    Genuine,
    /// Two people for certain: of one photograph, or both named.
    Certain,
    /// Two people as far as anybody knows.
    Presumed,
}

/// Every face of the folder; `people` is a file of lines `FILE,PERSON`, for every photograph whose best face is known.
pub(crate) async fn faces(analyzer: &Analyzer, folder: &str, people: &str) -> Vec<Face> {
    let people: HashMap<String, String> = std::fs::read_to_string(people)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(',').map(|(file, person)| (file.to_owned(), person.to_owned())))
        .collect();
    let mut faces = Vec::new();
    for path in crate::common::files(folder) {
        let bytes = Bytes::from(std::fs::read(&path).unwrap());
        let Ok(analysis) = analyzer.analyze(bytes, &AnalyzeOptions::default(), Lane::Background).await else {
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
                strict: quality.unmet(Profile::Strict).is_empty(),
                hashes: analysis.hashes,
                embedding,
            });
        }
    }
    faces
}

/// Gives each pair that says something to `take`: two versions of one photograph have the same faces, and are left out.
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
