//! The faces that earlier files of an import enrolled, or would enrol in a dry run. The database
//! does not contain those of a dry run, and a search index outside the database may lack the newest
//! ones.
use super::SimilarPerson;
use inference::Embedding;
use std::collections::{HashSet, VecDeque};
use uuid::Uuid;

/// Maximum number of faces in memory. With 512 dimensions, they take 40 MB.
const MAX_FACES: usize = 20_000;

#[derive(Default)]
pub(super) struct EarlierFaces {
    /// Oldest first.
    faces: VecDeque<EarlierFace>,
    /// Names in lower case of all faces, also of those that are no longer in `faces`.
    names: HashSet<String>,
}

struct EarlierFace {
    name: String,
    subject: Option<Uuid>,
    sha256: [u8; 32],
    embedding: Embedding,
}

/// How a face compares with earlier faces.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Whether an earlier file of the person has the same bytes.
    pub(super) has_file: bool,
    /// Highest similarity to a face of the same name.
    pub(super) own: Option<f32>,
    /// The most similar other person.
    pub(super) other: Option<SimilarPerson>,
}

impl EarlierFaces {
    pub(super) fn add(
        &mut self,
        name: String,
        subject: Option<Uuid>,
        sha256: [u8; 32],
        embedding: Embedding,
    ) {
        if self.faces.len() == MAX_FACES {
            self.faces.pop_front();
        }
        self.names.insert(name.to_lowercase());
        self.faces.push_back(EarlierFace { name, subject, sha256, embedding });
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.names.contains(&name.to_lowercase())
    }

    pub(super) fn find(&self, name: &str, sha256: &[u8; 32], embedding: &Embedding) -> Comparison {
        let key = name.to_lowercase();
        let mut result = Comparison::default();
        for face in &self.faces {
            let Some(similarity) = face.embedding.similarity(embedding) else { continue };
            if face.name.to_lowercase() == key {
                result.has_file |= face.sha256 == *sha256;
                result.own = Some(result.own.map_or(similarity, |own| own.max(similarity)));
            } else if result.other.as_ref().is_none_or(|other| similarity > other.similarity) {
                let (subject_id, name) = (face.subject, Some(face.name.clone()));
                result.other = Some(SimilarPerson { subject_id, name, similarity });
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn embedding(x: f32, y: f32) -> Embedding {
        Embedding::from_raw(vec![x, y]).unwrap()
    }

    #[test]
    fn face_is_compared_with_own_and_other_names() {
        let mut earlier = EarlierFaces::default();
        earlier.add("Ada".into(), None, [1; 32], embedding(1.0, 0.0));
        earlier.add("Ben".into(), None, [2; 32], embedding(0.0, 1.0));
        let found = earlier.find("ADA", &[1; 32], &embedding(0.0, 1.0));
        assert!(found.has_file);
        assert_eq!((found.own, found.other.unwrap().name.as_deref()), (Some(0.0), Some("Ben")));
        assert!(earlier.has_name("ben") && !earlier.has_name("cora"));
    }

    #[test]
    fn memory_holds_newest_faces_only() {
        let mut earlier = EarlierFaces::default();
        for number in 0..=MAX_FACES {
            earlier.add(format!("person {number}"), None, [0; 32], embedding(1.0, 0.0));
        }
        assert_eq!(earlier.faces.len(), MAX_FACES);
        assert_eq!(earlier.faces[0].name, "person 1");
        assert!(earlier.has_name("person 0"), "names of dropped faces are kept");
    }
}
