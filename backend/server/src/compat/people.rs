//! Operations that the APIs of other servers share. These APIs identify people by their names, and
//! compare a face with all people who have a name.
use super::similarity::similarity;
use crate::auth::Caller;
use crate::extract::image::{ImageSource, resolve};
use crate::routes::people::{EnrolledImagesParams, check_name};
use crate::routes::{people, shared::analysis};
use crate::{ApiError, AppState, Code, Result};
use bytes::Bytes;
use pipeline::people::enrol::{EnrolPerson, EnrolledFace, Enrolment};
use pipeline::{Analysis, AnalyzeOptions, AnalyzedFace};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use store::collections::Collection;
use store::faces::FaceSubject;
use store::faces::search::{Hit, SearchQuery};
use store::index::scope::{Assignment, FaceFilter};
use store::keys::audit::Action;
use store::people::{NewSubject, Subject, SubjectPatch};
use store::retried;
use uuid::Uuid;
use vision::Profile;

/// Maximum number of faces of an image that are returned. The largest faces are kept.
const MAX_FACES: usize = 100;
/// Maximum number of people that a search reads to find enough different names.
const MAX_PEOPLE: i64 = 1_000;
/// Maximum number of names in a list.
const MAX_NAMES: i64 = 100_000;

/// A person who resembles a face.
pub(super) struct Candidate {
    pub(super) name: String,
    /// 0 to 1; see [`similarity`].
    pub(super) similarity: f64,
}

/// Access to the people of one collection, on behalf of a caller.
pub(super) struct People<'a> {
    state: &'a AppState,
    caller: &'a Caller,
    pub(super) collection: Collection,
}

impl<'a> People<'a> {
    /// Opens the people of the caller's collection, else of `default`.
    pub(super) async fn new(state: &'a AppState, caller: &'a Caller) -> Result<Self> {
        Ok(Self { state, caller, collection: caller.collection(None).await? })
    }

    /// Returns the cosine at which two faces count as one person.
    fn threshold(&self) -> f32 {
        self.state.match_threshold(None, self.collection.match_threshold).value
    }

    /// Returns the similarity of two embeddings.
    pub(super) fn similarity(&self, cosine: f32) -> f64 {
        similarity(cosine, self.threshold())
    }

    /// Returns the person with this name, regardless of case.
    ///
    /// # Errors
    /// Fails with 409 if several people have the name.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Subject>> {
        let store = self.caller.store();
        let Some(name) = check_name("subject", Some(name.to_owned()))? else { return Ok(None) };
        match store.people().with_name(store.pool(), self.collection.id, &name).await?[..] {
            [] => Ok(None),
            [id] => Ok(Some(store.people().get(id).await?)),
            _ => Err(ApiError::new(
                Code::Conflict,
                format!("several people have the name `{name}`; rename or merge them in facecrawl"),
            )
            .field("subject")),
        }
    }

    /// Creates a person without faces. Returns `false` if a person has this name.
    pub(super) async fn create(&self, name: &str) -> Result<bool> {
        let store = self.caller.store();
        let name = check_name("subject", Some(name.to_owned()))?;
        let Some(text) = &name else { return Ok(false) };
        let new = NewSubject { name: name.clone(), external_id: None, metadata: Map::new().into() };
        retried("create_subject", || async {
            let mut tx = store.begin().await?;
            store.people().lock_name(tx.conn(), self.collection.id, text).await?;
            if !store.people().with_name(&mut *tx.conn(), self.collection.id, text).await?.is_empty() {
                return Ok(false);
            }
            store.people().insert(tx.conn(), self.collection.id, &new).await?;
            tx.commit().await?;
            Ok::<_, ApiError>(true)
        })
        .await
    }

    /// Gives a person another name.
    pub(super) async fn rename(&self, subject: &Subject, name: &str) -> Result<()> {
        let store = self.caller.store();
        let Some(text) = &check_name("subject", Some(name.to_owned()))? else { return Ok(()) };
        let patch = SubjectPatch { name: Some(Some(text.clone())), ..SubjectPatch::default() };
        retried("rename_subject", || async {
            let mut tx = store.begin().await?;
            store.people().lock_name(tx.conn(), subject.collection_id, text).await?;
            let others = store.people().with_name(&mut *tx.conn(), subject.collection_id, text).await?;
            if others.iter().any(|id| *id != subject.id) {
                let detail = "another request has just given this name to a person; repeat the request";
                return Err(ApiError::new(Code::Conflict, detail).field("subject"));
            }
            store.people().lock(tx.conn(), subject.collection_id, &[subject.id]).await?;
            store.people().update(tx.conn(), subject.id, &patch).await?;
            Ok::<_, ApiError>(tx.commit().await?)
        })
        .await
    }

    /// Returns the names of all people, in order and without duplicates.
    pub(super) async fn names(&self) -> Result<Vec<String>> {
        Ok(self.caller.store().people().names(self.collection.id, MAX_NAMES).await?)
    }

    /// Enrols the only face of an image. Creates the person if nobody has this name.
    ///
    /// # Errors
    /// Fails with 422 `no_face` or `no_such_face` if the image does not show exactly one face, and
    /// with 409 if the face in this image already belongs to another person.
    pub(super) async fn enrol(
        &self,
        name: &str,
        bytes: Bytes,
        min_score: Option<f32>,
    ) -> Result<EnrolledFace> {
        let Some(name) = check_name("subject", Some(name.to_owned()))? else {
            return Err(ApiError::for_field(Code::InvalidField, "subject", "the name is empty"));
        };
        let enrolment = Enrolment {
            bytes,
            url: None,
            final_url: None,
            collection: self.collection.id,
            person: EnrolPerson::Named(name),
            face_index: 0,
            requires_single_face: true,
            is_aligned: false,
            options: AnalyzeOptions {
                min_score,
                quality_profile: pipeline::profile_of(&self.collection),
                ..AnalyzeOptions::default()
            },
            // These servers accept every face, and their clients do not expect a refusal.
            required_profile: Profile::Off,
            force: false,
            // A face of a cluster moves. The transaction checks that no other person has it.
            allow_move: true,
        };
        let permit = self.state.analyses.admit(1)?;
        let enrolled = enrolment.enrol(&self.state.services.face_store, &self.state.analyzer()).await;
        drop(permit);
        Ok(enrolled?)
    }

    /// Deletes a person, and the images that were sent only to enrol this person. Returns the
    /// number of faces that the person had.
    ///
    /// # Errors
    /// Fails with 428 if the deletion is so large that it must be confirmed. Only the API of this
    /// service can confirm a deletion.
    pub(super) async fn delete(&self, subject: &Subject) -> Result<i64> {
        people::delete(self.state, self.caller, subject, EnrolledImagesParams::default()).await?;
        Ok(subject.face_count)
    }

    /// Returns the people who resemble each face most, best first. Records one entry in the audit
    /// log for all faces.
    pub(super) async fn recognize(
        &self,
        embeddings: &[Vec<f32>],
        limit: usize,
    ) -> Result<Vec<Vec<Candidate>>> {
        let mut found = Vec::with_capacity(embeddings.len());
        for embedding in embeddings {
            found.push(self.nearest(embedding, limit).await?);
        }
        self.record_search(&json!({"probe": "image", "faces": embeddings.len(), "limit": limit})).await?;
        Ok(found)
    }

    /// Records a comparison with stored faces in the audit log.
    pub(super) async fn record_search(&self, detail: &Value) -> Result<()> {
        self.caller.record(Action::Search, self.collection.id, detail).await
    }

    async fn nearest(&self, embedding: &[f32], limit: usize) -> Result<Vec<Candidate>> {
        let store = self.caller.store();
        let mut query = SearchQuery {
            collection_id: self.collection.id,
            embedding: embedding.to_vec(),
            model_id: self.state.services.face_store.model_id(),
            // The client compares the similarity with its own threshold.
            threshold: -1.0,
            limit: i64::try_from(limit.max(1)).unwrap_or(i64::MAX),
            exact: false,
            filter: FaceFilter::default(),
            exclude_face: None,
            assignment: Assignment::Named,
        };
        loop {
            let (hits, _) = retried("search", || store.faces().search_people(&query)).await?;
            let has_all = (hits.len() as i64) < query.limit;
            let mut names = HashSet::new();
            let candidate = |(hit, subject): (Hit, FaceSubject)| {
                let name = subject.name?;
                let is_first = names.insert(name.to_lowercase());
                is_first.then(|| Candidate { similarity: self.similarity(hit.similarity), name })
            };
            let mut candidates: Vec<Candidate> = hits.into_iter().filter_map(candidate).collect();
            // Several people can have one name.
            if candidates.len() >= limit || has_all || query.limit >= MAX_PEOPLE {
                candidates.truncate(limit);
                return Ok(candidates);
            }
            query.limit = query.limit.saturating_mul(2).min(MAX_PEOPLE);
        }
    }
}

/// Returns the bytes of an image in base64.
pub(super) async fn decode(state: &AppState, base64: String) -> Result<Bytes> {
    resolve(state, ImageSource::from_base64(base64)).await
}

/// Analyses an image. The faces are ordered by area, the largest first.
pub(super) async fn analyze(
    state: &AppState,
    bytes: Bytes,
    min_score: Option<f32>,
    with_embeddings: bool,
) -> Result<Analysis> {
    let options = AnalyzeOptions {
        min_score,
        embeddings: with_embeddings,
        quality: false,
        ..AnalyzeOptions::default()
    };
    let mut analysis = analysis::analyze(state, bytes, &options).await?;
    let area = |face: &AnalyzedFace| face.detection.bbox.width * face.detection.bbox.height;
    analysis.faces.sort_by(|a, b| area(b).total_cmp(&area(a)));
    analysis.faces.truncate(MAX_FACES);
    Ok(analysis)
}

/// Returns the embedding of a face.
pub(super) fn embedding(face: &AnalyzedFace) -> Result<Vec<f32>> {
    let embedding =
        face.embedding.as_ref().ok_or_else(|| ApiError::internal("a face without its embedding"))?;
    Ok(embedding.as_slice().to_vec())
}

/// Returns the cosine of two embeddings of length 1.
pub(super) fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns the face with this id, if it belongs to a person of the collection who has a name.
pub(super) async fn named_face(people: &People<'_>, id: Uuid) -> Result<Option<(Uuid, String)>> {
    let store = people.caller.store();
    let face = match store.faces().get(id).await {
        Ok(face) if face.collection_id == people.collection.id => face,
        Ok(_) | Err(store::StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let subject = store.people().of_faces(&[face.id]).await?.remove(&face.id);
    Ok(subject.and_then(|subject| Some((subject.subject_id, subject.name?))))
}
