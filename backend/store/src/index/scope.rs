//! The faces with which a search compares, and their conditions in SQL. `f` is the alias of the
//! table `faces` in every condition.
use crate::StoreError;
use sqlx::{PgPool, Postgres, QueryBuilder};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use uuid::Uuid;

/// Conditions common to lists and searches of faces. A face must meet each of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaceFilter {
    /// Only faces in images found by this crawl.
    pub crawl_id: Option<Uuid>,
    /// Only faces in images or videos found on this host or its subdomains. The host of the page
    /// counts. For a file that was not found on a page, the host of the file counts.
    pub site: Option<Site>,
    /// Only faces stored at this time or later.
    pub since: Option<OffsetDateTime>,
    /// Only faces stored before this time.
    pub until: Option<OffsetDateTime>,
    pub min_quality: Option<f32>,
}

/// Maximum number of images of a site that are read first and passed to the next statement as a
/// list, and maximum number of rows that are read for this.
const MAX_SITE_IMAGES: i64 = 2_000;
const MAX_SITE_ROWS: i64 = 10_000;
/// Maximum length of a host name in bytes (RFC 1035, section 3.1, without the root).
const MAX_HOST: usize = 253;

/// A host name or an IP address, normalised as in a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site(String);

/// The text is neither a host name nor an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a host name such as example.org, or an IP address, without a scheme, a port or a path")]
pub struct InvalidSite;

impl Site {
    /// Parses a host name in any notation that a URL may contain, such as Unicode or capitals.
    ///
    /// # Errors
    /// Fails if the text is neither a host name nor an IP address.
    pub fn parse(text: &str) -> Result<Self, InvalidSite> {
        let text = text.trim();
        let is_bare_v6 = text.contains(':') && !text.starts_with('[');
        let host = if is_bare_v6 { url::Host::parse(&format!("[{text}]")) } else { url::Host::parse(text) };
        let host = host.map_err(|_| InvalidSite)?.to_string();
        let name = host.strip_suffix('.').unwrap_or(&host);
        let is_name =
            name.len() <= MAX_HOST && !name.contains('*') && name.split('.').all(|label| !label.is_empty());
        is_name.then(|| Self(name.to_owned())).ok_or(InvalidSite)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the host with its characters in reverse order, as `site_key` in SQL.
    fn key(&self) -> String {
        self.0.chars().rev().collect()
    }
}

/// How a statement reads the faces of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The statement reads all faces in scope, and may start from any condition.
    All,
    /// The statement tests single faces, such as the candidates of a search. The condition on the
    /// site must use the sources of one image only.
    EachFace,
}

/// The subjects to which a face may be assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Assignment {
    /// Faces with and without a subject.
    #[default]
    Any,
    /// Faces of people and of clusters.
    Subject,
    /// Faces of people whom a user enrolled.
    Enrolled,
    /// Faces of people who have a name.
    Named,
}

impl Assignment {
    /// Adds the condition after `and`.
    fn push(self, sql: &mut QueryBuilder<Postgres>, access: Access, collection: Uuid) {
        let people = match self {
            Self::Any => return,
            Self::Subject => {
                sql.push(" and exists (select 1 from subject_faces sf where sf.face_id = f.id)");
                return;
            }
            Self::Enrolled => "p.origin = 'enrolled'",
            // A cluster has no name. The first condition lets the planner use an index.
            Self::Named => "p.origin = 'enrolled' and p.name is not null",
        };
        match access {
            // Reads the people first, and then only their faces. Otherwise, the planner starts from
            // all faces, even if most of them are of clusters. With 300,000 clusters and 100
            // people, this takes about 200 ms instead of 2 ms.
            Access::All => {
                sql.push(
                    " and f.id = any(array(select sf.face_id from subject_faces sf where sf.subject_id = any(array(
                         select p.id from subjects p where p.collection_id = ",
                );
                sql.push_bind(collection).push(format!(" and {people}))))"));
            }
            Access::EachFace => {
                sql.push(format!(
                    " and exists (select 1 from subject_faces sf join subjects p on p.id = sf.subject_id
                                  where sf.face_id = f.id and {people})"
                ));
            }
        }
    }
}

/// The faces that a search or a clustering compares with.
#[derive(Clone, Debug, PartialEq)]
pub struct FaceScope {
    pub collection_id: Uuid,
    pub model_id: i32,
    pub filter: FaceFilter,
    /// The images of the filter's site, if they are few. Reading them first makes every statement
    /// fast, because the planner has no statistics of sites.
    pub(crate) site_images: Option<Vec<Uuid>>,
    /// Omits faces that failed their quality profile.
    pub omit_failed: bool,
    pub exclude_face: Option<Uuid>,
    pub assignment: Assignment,
}

impl FaceScope {
    pub fn all(collection_id: Uuid, model_id: i32) -> Self {
        Self {
            collection_id,
            model_id,
            filter: FaceFilter::default(),
            site_images: None,
            omit_failed: false,
            exclude_face: None,
            assignment: Assignment::Any,
        }
    }

    /// Adds the conditions. The model's id is a literal, because the planner uses a partial index
    /// only if it can see the index's condition.
    pub(crate) fn push(&self, sql: &mut QueryBuilder<Postgres>, access: Access) {
        sql.push(format!("f.model_id = {} and f.collection_id = ", self.model_id))
            .push_bind(self.collection_id);
        self.filter.push(sql, access, self.site_images.as_deref());
        if self.omit_failed {
            sql.push(" and f.quality_passed is distinct from false");
        }
        if let Some(face) = self.exclude_face {
            sql.push(" and f.id <> ").push_bind(face);
        }
        self.assignment.push(sql, access, self.collection_id);
    }
}

impl FaceFilter {
    /// Adds the conditions, each after `and`. `site_images` are the site's images, if known.
    pub(crate) fn push(
        &self,
        sql: &mut QueryBuilder<Postgres>,
        access: Access,
        site_images: Option<&[Uuid]>,
    ) {
        if let Some(crawl) = self.crawl_id {
            sql.push(" and f.image_id in ");
            push_images_of_crawl(sql, crawl);
        }
        match (&self.site, site_images, access) {
            (None, _, _) => {}
            (Some(_), Some(images), _) => {
                sql.push(" and f.image_id = any(").push_bind(images.to_vec()).push(")");
            }
            (Some(site), None, Access::All) => {
                sql.push(" and f.image_id in (");
                push_images_of_site(sql, site);
                sql.push(")");
            }
            (Some(site), None, Access::EachFace) => push_is_on_site(sql, site),
        }
        if let Some(since) = self.since {
            sql.push(" and f.created_at >= ").push_bind(since);
        }
        if let Some(until) = self.until {
            sql.push(" and f.created_at < ").push_bind(until);
        }
        if let Some(quality) = self.min_quality {
            sql.push(" and f.quality_overall >= ").push_bind(quality);
        }
    }
}

/// Adds a subquery for the images of a crawl or a scan, among them the stored frames of its videos.
pub(crate) fn push_images_of_crawl(query: &mut QueryBuilder<Postgres>, crawl: Uuid) {
    query
        .push("(select u.image_id from image_urls u where u.image_id is not null and u.crawl_id = ")
        .push_bind(crawl)
        .push(" union all select s.image_id from videos v join video_frames s on s.video_id = v.id where v.crawl_id = ")
        .push_bind(crawl)
        .push(" or v.scan_id = ")
        .push_bind(crawl)
        .push(")");
}

/// A way to find the site of an image: tables, and two expressions on these tables.
struct SiteRelation {
    /// The column with the image.
    image: &'static str,
    tables: &'static str,
    /// The indexed expression that gives the key of the site.
    key: &'static str,
}

/// The ways in which an image has a site: directly, or as a frame of a video. The address of a
/// video counts only if no page of the video is known. Videos with the same file share the frames
/// of the first one, whose id is `original_id`.
const SITE_RELATIONS: [SiteRelation; 5] = [
    SiteRelation { image: "s.image_id", tables: "image_sources s", key: "site_key(s.page_url, s.image_url)" },
    SiteRelation {
        image: "fr.image_id",
        tables: "video_frames fr join video_sources vs on vs.video_id = fr.video_id",
        key: "site_key(vs.page_url, null)",
    },
    SiteRelation {
        image: "fr.image_id",
        tables: "video_frames fr join videos v on v.id = fr.video_id
                     and not exists (select from video_sources vs where vs.video_id = v.id)",
        key: "site_key(null, v.source_url)",
    },
    SiteRelation {
        image: "fr.image_id",
        tables: "video_frames fr join videos v on v.original_id = fr.video_id
                     join video_sources vs on vs.video_id = v.id",
        key: "site_key(vs.page_url, null)",
    },
    SiteRelation {
        image: "fr.image_id",
        tables: "video_frames fr join videos v on v.original_id = fr.video_id
                     and not exists (select from video_sources vs where vs.video_id = v.id)",
        key: "site_key(null, v.source_url)",
    },
];

/// Returns the images of the filter's site that have faces in the collection. Returns `None` if the
/// filter has no site, or if the number of images exceeds `limit` or [`MAX_SITE_IMAGES`], whichever
/// is lower. The work is limited for every site.
pub(crate) async fn images_of_small_site(
    pool: &PgPool,
    collection: Uuid,
    filter: &FaceFilter,
    limit: i64,
) -> Result<Option<Vec<Uuid>>, StoreError> {
    let Some(site) = &filter.site else { return Ok(None) };
    let limit = limit.clamp(0, MAX_SITE_IMAGES);
    let mut sql = QueryBuilder::<Postgres>::new("with found as materialized (select image_id from (");
    push_images_of_site(&mut sql, site);
    sql.push(") place limit ").push_bind(MAX_SITE_ROWS + 1);
    // A scalar subquery, because the planner could turn a join into a scan of all images.
    sql.push(
        ") select (select count(*) from found), array(select image_id from found where
             (select i.face_count > 0 and i.collection_id = ",
    );
    sql.push_bind(collection).push(" from images i where i.id = found.image_id) limit ").push_bind(limit + 1);
    let (rows, images): (i64, Vec<Uuid>) = sql.push(")").build_query_as().fetch_one(pool).await?;
    Ok((rows <= MAX_SITE_ROWS && images.len() as i64 <= limit).then_some(images))
}

/// Adds a query for all images of the site. An image can be in it several times.
fn push_images_of_site(sql: &mut QueryBuilder<Postgres>, site: &Site) {
    for (number, SiteRelation { image, tables, key }) in SITE_RELATIONS.iter().enumerate() {
        if number > 0 {
            sql.push(" union all ");
        }
        sql.push(format!("select {image} from {tables} where {image} is not null and "));
        push_site(sql, key, site);
    }
}

/// Adds the condition that the image of the face was found on the site. It uses scalar subqueries,
/// because the planner could turn `exists` or `in` into a set of all images of the site.
fn push_is_on_site(sql: &mut QueryBuilder<Postgres>, site: &Site) {
    sql.push(" and coalesce(");
    for SiteRelation { image, tables, key } in &SITE_RELATIONS {
        sql.push(format!("(select true from {tables} where {image} = f.image_id and "));
        push_site(sql, key, site);
        sql.push(" limit 1), ");
    }
    sql.push("false)");
}

/// Adds the condition that the expression `key` is the key of the site or of a subdomain. The key
/// of a subdomain begins with the site's key and a dot. In the collation "C", a slash follows the
/// dot, so these keys form one range.
fn push_site(sql: &mut QueryBuilder<Postgres>, key: &str, site: &Site) {
    let (key, expected) = (format!("({key} collate \"C\")"), site.key());
    sql.push(format!("({key} = ")).push_bind(expected.clone());
    sql.push(format!(" or ({key} >= ")).push_bind(format!("{expected}."));
    sql.push(format!(" and {key} < ")).push_bind(format!("{expected}/")).push("))");
}

/// Scopes known to have more faces than a bound, with the time of the count.
#[derive(Debug, Default)]
pub(crate) struct LargeScopes(Mutex<HashMap<Scope, (i64, Instant)>>);

impl LargeScopes {
    const MAX_AGE: Duration = Duration::from_secs(60);

    /// Returns whether the scope is known to have more than `bound` faces.
    pub(crate) fn contains(&self, scope: &Scope, bound: i64) -> bool {
        let scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        scopes.get(scope).is_some_and(|(above, at)| bound <= *above && at.elapsed() < Self::MAX_AGE)
    }

    pub(crate) fn insert(&self, scope: Scope, bound: i64) {
        let mut scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        scopes.retain(|_, (_, at)| at.elapsed() < Self::MAX_AGE);
        scopes.insert(scope, (bound, Instant::now()));
    }
}

/// The set of faces that a search compares with, apart from `exclude_face`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    pub(crate) model: i32,
    pub(crate) collection: Uuid,
    pub(crate) crawl: Option<Uuid>,
    pub(crate) site: Option<Site>,
    /// `since` and `until` in whole minutes since 1970. Searches whose bounds differ only within a
    /// minute share an entry, because the number of faces in scope hardly differs.
    pub(crate) stored: (Option<i64>, Option<i64>),
    /// The minimum quality, as bits.
    pub(crate) quality: Option<u32>,
    pub(crate) assignment: Assignment,
}

impl From<&FaceScope> for Scope {
    fn from(scope: &FaceScope) -> Self {
        let filter = &scope.filter;
        let minute = |time: OffsetDateTime| time.unix_timestamp().div_euclid(60);
        Self {
            model: scope.model_id,
            collection: scope.collection_id,
            crawl: filter.crawl_id,
            site: filter.site.clone(),
            stored: (filter.since.map(minute), filter.until.map(minute)),
            quality: filter.min_quality.map(f32::to_bits),
            assignment: scope.assignment,
        }
    }
}
