//! Imports many people: enrols one face of each file, and reports the result of each file. The
//! names of people and the list of files are read in `list`. One face is enrolled in
//! `people::enrol`.
//!
//! Several files are analysed at a time. Each decision and its transaction follow the order of the
//! files, so the report depends only on the files and on the collection. A file that waits for its
//! turn holds no pixels, so files never wait for each other's memory.
mod earlier;
pub mod list;
mod report;

pub use report::{FileReport, ImportSummary, Rejection, SimilarPerson};

use super::enrol::{AnalyzedFile, Person, Stored, Target, unmet_requirements};
use crate::images::face_store::{FaceStore, IngestError};
use crate::{AnalyzeError, AnalyzeOptions, Analyzer};
use bytes::Bytes;
use domain::{EnrolmentOutcome, Reason};
use earlier::EarlierFaces;
use futures::stream::{BoxStream, Peekable};
use futures::{Stream, StreamExt};
use inference::{Embedding, Priority, RunError};
use report::{no_embedding, of_other_person, rejection_of, several_subjects, suppressed};
use std::pin::Pin;
use std::sync::Arc;
use store::StoreError;
use store::faces::search::SearchQuery;
use store::index::scope::{Assignment, FaceFilter};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;
use vision::Profile;

/// Maximum number of subjects that a search for similar people returns. The search also returns
/// clusters. It is unlikely that so many of them are more similar than an enrolled person.
const SIMILAR_SUBJECTS: i64 = 50;

#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Id of the collection. In a dry run, the collection may be missing; it then counts as empty.
    pub collection: Uuid,
    /// The profile that a face must meet to be enrolled.
    pub required_profile: Profile,
    /// Options of the analysis. Their profile is used to assess the stored faces.
    pub options: AnalyzeOptions,
    /// Minimum similarity of two faces of one person, -1 to 1.
    pub threshold: f32,
    /// Whether to enrol a face that resembles another enrolled person.
    pub allow_similar: bool,
    /// Whether to report only, and store nothing.
    pub dry_run: bool,
    /// Number of files that are analysed at a time, at least 1.
    pub concurrency: usize,
}

/// A file to enrol.
#[derive(Clone, Debug)]
pub struct ImportFile {
    /// The file in the report, such as its path.
    pub file: String,
    /// The name of the person, as given.
    pub name: Option<String>,
    /// The bytes, or the reason why there are none.
    pub content: Result<Bytes, Rejection>,
}

/// An import in progress. [`Self::next`] enrols the next file.
pub struct Import {
    inner: Arc<Inner>,
    analysed: Peekable<BoxStream<'static, Analysed>>,
    earlier: EarlierFaces,
    summary: ImportSummary,
}

struct Inner {
    faces: FaceStore,
    analyzer: Analyzer,
    options: ImportOptions,
}

enum Analysed {
    Done(FileReport),
    Candidate(Box<Candidate>),
    Failed(IngestError),
}

/// A file with one good face, which waits for its turn.
struct Candidate {
    file: String,
    name: String,
    analysed: AnalyzedFile,
}

impl Candidate {
    fn report(&self, outcome: EnrolmentOutcome) -> FileReport {
        FileReport::new(self.file.clone(), Some(self.name.clone()), outcome)
    }

    fn rejected(&self, rejection: Rejection) -> FileReport {
        FileReport::rejected(self.file.clone(), Some(self.name.clone()), rejection)
    }

    /// Returns the embedding, which every candidate has.
    fn embedding(&self) -> Option<&Embedding> {
        self.analysed.faces.first().and_then(|face| face.embedding.as_ref())
    }
}

impl Import {
    /// Starts the analysis of the first files. The analyses run on behalf of the caller of
    /// `analyzer`, with its deadline. Dropping the import aborts them.
    pub fn start(
        faces: FaceStore,
        analyzer: Analyzer,
        options: ImportOptions,
        files: impl Stream<Item = ImportFile> + Send + 'static,
    ) -> Self {
        let options = ImportOptions {
            options: AnalyzeOptions { chips: !options.dry_run, ..options.options },
            ..options
        };
        let (concurrency, dry_run) = (options.concurrency.max(1), options.dry_run);
        let inner = Arc::new(Inner { faces, analyzer, options });
        let analyses = inner.clone();
        let analysed = files
            .map(move |file| {
                // A task continues while the transaction of another file runs.
                let inner = analyses.clone();
                let task = AbortOnDropHandle::new(tokio::spawn(async move { inner.analyse(file).await }));
                async move { task.await.unwrap_or_else(|_| Analysed::Failed(AnalyzeError::Panicked.into())) }
            })
            .buffered(concurrency)
            .boxed()
            .peekable();
        let summary = ImportSummary { dry_run, ..ImportSummary::default() };
        Self { inner, analysed, earlier: EarlierFaces::default(), summary }
    }

    /// Waits until the next file was analysed. Returns `false` after the last one. Dropping the
    /// future loses nothing.
    pub async fn ready(&mut self) -> bool {
        Pin::new(&mut self.analysed).peek().await.is_some()
    }

    /// Enrols the next file. Returns `None` after the last one.
    ///
    /// # Errors
    /// Fails with [`IngestError`] if the store or the service fails. Files that were reported
    /// before are enrolled. Repeating the import continues it.
    pub async fn next(&mut self) -> Option<Result<FileReport, IngestError>> {
        let report = match self.analysed.next().await? {
            Analysed::Done(report) => Ok(report),
            Analysed::Candidate(candidate) => self.decide(*candidate).await,
            Analysed::Failed(error) => Err(error),
        };
        if let Ok(report) = &report {
            self.summary.files += 1;
            *self.summary.outcomes.entry(report.outcome).or_default() += 1;
        }
        Some(report)
    }

    /// Returns the counts of the files that were reported so far.
    pub fn summary(&self) -> &ImportSummary {
        &self.summary
    }

    async fn decide(&mut self, candidate: Candidate) -> Result<FileReport, IngestError> {
        let Inner { faces, options, .. } = &*self.inner;
        let (store, name) = (&faces.store, candidate.name.clone());
        // An earlier file of this import may have the same bytes.
        if let Some(known) = self.inner.known(&candidate.file, &name, candidate.analysed.sha256()).await? {
            return Ok(known);
        }
        let subjects = store.people().with_name(store.pool(), options.collection, &name).await?;
        if subjects.len() > 1 {
            return Ok(candidate.rejected(several_subjects()));
        }
        let subject = subjects.first().copied();
        if let Some(reason) = self.inner.suppression(&candidate.analysed).await? {
            return Ok(candidate.rejected(suppressed(reason)));
        }
        let Some(embedding) = candidate.embedding().cloned() else {
            return Ok(candidate.rejected(no_embedding()));
        };
        let earlier = self.earlier.find(&name, candidate.analysed.sha256(), &embedding);
        if options.dry_run && earlier.has_file {
            return Ok(candidate.report(EnrolmentOutcome::AlreadyEnrolled));
        }
        let mut people = self.inner.similar_people(&embedding).await?;
        let own = people.extract_if(.., |person| person.subject_id.is_some() && person.subject_id == subject);
        let own = own.map(|person| person.similarity).chain(earlier.own).fold(f32::MIN, f32::max);
        people.extend(earlier.other);
        let similar = people.into_iter().max_by(|a, b| a.similarity.total_cmp(&b.similarity));
        let similar = similar.filter(|person| person.similarity >= options.threshold.max(own));
        if let Some(similar) = similar.clone().filter(|_| !options.allow_similar) {
            let detail = format!(
                "the face resembles {}, who is enrolled, with the similarity {:.3}",
                similar.name.as_deref().unwrap_or("a person without a name"),
                similar.similarity
            );
            let report = candidate.report(EnrolmentOutcome::LooksLike);
            return Ok(FileReport {
                detail: Some(detail),
                similar: Some(similar),
                subject_id: subject,
                ..report
            });
        }
        let (sha256, report) = (*candidate.analysed.sha256(), candidate.report(EnrolmentOutcome::Enrolled));
        let report = FileReport { similar, subject_id: subject, ..report };
        if options.dry_run {
            self.summary.subjects_created += u64::from(subject.is_none() && !self.earlier.has_name(&name));
            self.earlier.add(name, None, sha256, embedding);
            return Ok(report);
        }
        let target = Target {
            collection: options.collection,
            person: Person::Named(&name),
            url: None,
            final_url: None,
            face_index: 0,
            // A face of a cluster moves. The transaction checks that no other person has it.
            allow_move: true,
        };
        let stored = candidate.analysed.enrol(faces, &target).await?;
        match stored {
            Stored::Enrolled { face, image, subject, is_new_subject } => {
                self.summary.subjects_created += u64::from(is_new_subject);
                self.earlier.add(name, Some(subject), sha256, embedding);
                let (subject_id, image_id, face_id) = (Some(subject), Some(image), Some(face));
                Ok(FileReport { subject_id, image_id, face_id, ..report })
            }
            Stored::Suppressed(reason) => {
                Ok(FileReport::rejected(report.file, report.name, suppressed(reason)))
            }
            Stored::AmbiguousName => Ok(FileReport::rejected(report.file, report.name, several_subjects())),
            Stored::OtherPerson(other) => Ok(of_other_person(report.file, report.name, other)),
        }
    }
}

impl Inner {
    async fn analyse(&self, file: ImportFile) -> Analysed {
        self.try_analyse(file).await.unwrap_or_else(Analysed::Failed)
    }

    async fn try_analyse(&self, file: ImportFile) -> Result<Analysed, IngestError> {
        let ImportFile { file, name: given, content } = file;
        let done = |name: &Option<String>, rejection| {
            Ok(Analysed::Done(FileReport::rejected(file.clone(), name.clone(), rejection)))
        };
        let bytes = match content {
            Ok(bytes) => bytes,
            Err(rejection) => return done(&given, rejection),
        };
        let name = match given.as_deref().map(list::normal_name) {
            Some(Ok(name)) => name,
            Some(Err(detail)) => return done(&given, Rejection::new(EnrolmentOutcome::BadName, detail)),
            None => {
                return done(&given, Rejection::new(EnrolmentOutcome::BadName, "no person is named"));
            }
        };
        let given = Some(name.clone());
        let sha256 = self.analyzer.digest(bytes.clone()).await?;
        if let Some(known) = self.known(&file, &name, &sha256).await? {
            return Ok(Analysed::Done(known));
        }
        let options = &self.options.options;
        let analysis = async {
            let priority = Priority::Background;
            let decoded = self.analyzer.decode_hashed(bytes, Some(sha256), options.enhance, priority).await?;
            self.analyzer.find_faces(decoded, options, priority).await
        };
        let analysis = match analysis.await {
            Ok(analysis) => analysis,
            // The process is stopping, or an option is wrong. Both concern every file.
            Err(error @ (AnalyzeError::Run(RunError::Stopped) | AnalyzeError::Option(_))) => {
                return Err(error.into());
            }
            Err(error) => return done(&given, rejection_of(&error)),
        };
        let face = match &analysis.faces[..] {
            [] => {
                let detail = "no face was found";
                return done(&given, Rejection::new(EnrolmentOutcome::NoFace, detail));
            }
            [face] => face,
            faces => {
                let detail = format!("the image shows {} faces; exactly one is needed", faces.len());
                return done(&given, Rejection::new(EnrolmentOutcome::SeveralFaces, detail));
            }
        };
        let unmet = unmet_requirements(face.quality.as_ref(), self.options.required_profile, false);
        if !unmet.is_empty() {
            let detail = format!("the face does not meet the quality profile: {}", unmet.join(", "));
            let rejection = Rejection::new(EnrolmentOutcome::LowQuality, detail);
            let report = FileReport::rejected(file.clone(), given, rejection);
            return Ok(Analysed::Done(FileReport { unmet, ..report }));
        }
        if face.embedding.is_none() {
            return done(&given, no_embedding());
        }
        let analysed = match self.options.dry_run {
            true => AnalyzedFile::without_files(&analysis),
            false => AnalyzedFile::new(&self.faces, analysis).await?,
        };
        Ok(Analysed::Candidate(Box::new(Candidate { file: file.clone(), name, analysed })))
    }

    /// Returns the report of a file in which an enrolled person has a face.
    async fn known(
        &self,
        file: &str,
        name: &str,
        sha256: &[u8; 32],
    ) -> Result<Option<FileReport>, StoreError> {
        let (people, pool) = (self.faces.store.people(), self.faces.store.pool());
        let collection = self.options.collection;
        let known = people.enrolled_faces_of_file(pool, collection, sha256).await?;
        if known.is_empty() {
            return Ok(None);
        }
        let subjects = people.with_name(pool, collection, name).await?;
        let (file, name) = (file.to_owned(), Some(name.to_owned()));
        let own = known.iter().position(|face| subjects.contains(&face.subject_id));
        let face = known.into_iter().nth(own.unwrap_or(0));
        Ok(face.map(|face| match own {
            Some(_) => FileReport {
                subject_id: Some(face.subject_id),
                image_id: Some(face.image_id),
                face_id: Some(face.face_id),
                ..FileReport::new(file, name, EnrolmentOutcome::AlreadyEnrolled)
            },
            None => of_other_person(file, name, face),
        }))
    }

    /// Returns the reason if the file must not be stored. The transaction that stores it checks
    /// again.
    async fn suppression(&self, file: &AnalyzedFile) -> Result<Option<Reason>, StoreError> {
        let FaceStore { store, suppressor, .. } = &self.faces;
        if !suppressor.has_suppressions(self.options.collection).await? {
            return Ok(None);
        }
        let mut tx = store.begin().await?;
        let suppressed =
            suppressor.suppressed_parts(&mut tx, self.options.collection, None, &file.to_check()).await?;
        Ok((!suppressed.is_empty()).then(|| suppressed.whole.unwrap_or(Reason::SuppressedFace)))
    }

    /// Returns the enrolled people whom a face resembles, best first.
    async fn similar_people(&self, face: &Embedding) -> Result<Vec<SimilarPerson>, StoreError> {
        let store = &self.faces.store;
        let query = SearchQuery {
            collection_id: self.options.collection,
            embedding: face.as_slice().to_vec(),
            model_id: self.faces.model_id,
            threshold: self.options.threshold,
            limit: SIMILAR_SUBJECTS,
            exact: false,
            filter: FaceFilter::default(),
            exclude_face: None,
            assignment: Assignment::Enrolled,
        };
        let (people, _) = store.faces().search_people(&query).await?;
        let person = |(hit, subject): (store::faces::search::Hit, store::faces::FaceSubject)| SimilarPerson {
            subject_id: Some(subject.subject_id),
            name: subject.name,
            similarity: hit.similarity,
        };
        Ok(people.into_iter().map(person).collect())
    }
}
