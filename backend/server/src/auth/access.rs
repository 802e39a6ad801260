//! Which scope each operation needs: the one place that says so.
use axum::http::Method;
use std::collections::HashMap;
use std::sync::LazyLock;
use store::keys::Scope;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{OpenApi, RefOr};

/// What an operation asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: health, and the description of the API.
    Open,
    /// A key, whatever its scopes.
    AnyKey,
    /// A key with this scope.
    Needs(Scope),
}

/// By operation id; `None` for one that nobody decided on, which is not served where keys are asked for.
pub(crate) fn access(operation_id: &str) -> Option<Access> {
    let scope = match operation_id {
        "health_live" | "health_ready" | "get_openapi" => return Some(Access::Open),
        "get_current_key" => return Some(Access::AnyKey),
        "detect_faces" | "detect_faces_batch" | "compare_faces" | "report_quality" | "enhance_image" => {
            Scope::Analyze
        }
        "list_collections"
        | "get_collection"
        | "list_crawls"
        | "get_crawl"
        | "follow_crawl"
        | "export_crawl"
        | "list_images"
        | "get_image"
        | "get_image_thumbnail"
        | "list_image_sources"
        | "list_faces"
        | "get_face"
        | "get_face_crop"
        | "list_subjects"
        | "get_subject"
        | "list_subject_faces"
        | "get_clustering" => Scope::Read,
        "search_faces" => Scope::Search,
        "create_crawl" | "pause_crawl" | "resume_crawl" | "cancel_crawl" => Scope::Crawl,
        "create_subject"
        | "update_subject"
        | "merge_subject"
        | "enrol_subject_faces"
        | "remove_subject_face"
        | "cluster_collection" => Scope::Write,
        "delete_crawl" | "delete_image" | "delete_face" | "delete_subject" | "create_erasure"
        | "list_erasures" => Scope::Erase,
        "create_collection"
        | "update_collection"
        | "delete_collection"
        | "rotate_webhook_secret"
        | "list_audit"
        | "lift_suppressions" => Scope::Admin,
        "create_key" | "list_keys" | "revoke_key" => Scope::Keys,
        "get_gpu" | "get_metrics" | "list_jobs" | "get_job" | "get_job_stats" | "retry_job" => Scope::System,
        _ => return None,
    };
    Some(Access::Needs(scope))
}

/// The operations of a path with their methods.
pub(crate) fn methods(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    [
        (Method::GET, item.get.as_mut()),
        (Method::POST, item.post.as_mut()),
        (Method::PUT, item.put.as_mut()),
        (Method::PATCH, item.patch.as_mut()),
        (Method::DELETE, item.delete.as_mut()),
    ]
    .into_iter()
    .filter_map(|(method, operation)| operation.map(|operation| (method, operation)))
}

/// What every operation that is served asks and takes, by method and path.
pub(crate) struct Operations(HashMap<(Method, String), Asks>);

struct Asks {
    access: Access,
    /// Content types of the body.
    media: Vec<String>,
}

impl Operations {
    /// Those of this API.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: LazyLock<Operations> = LazyLock::new(|| Operations::of(crate::openapi()));
        &SHARED
    }

    fn of(mut document: OpenApi) -> Self {
        let mut known = HashMap::new();
        for (path, item) in &mut document.paths.paths {
            for (method, operation) in methods(item) {
                let Some(access) = operation.operation_id.as_deref().and_then(access) else { continue };
                let media = match &operation.request_body {
                    Some(RefOr::T(body)) => body.content.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                known.insert((method, path.clone()), Asks { access, media });
            }
        }
        Self(known)
    }

    /// Of the operation behind a route's template; axum answers `HEAD` as it does `GET`.
    pub(crate) fn access(&self, method: &Method, path: &str) -> Option<Access> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(&(method.clone(), path.to_owned())).map(|asks| asks.access)
    }

    /// Returns the content types that the operation takes; `application/json` where it reads no
    /// body.
    pub(crate) fn media(&self, method: &Method, path: &str) -> Vec<String> {
        let media = self.0.get(&(method.clone(), path.to_owned())).map(|asks| asks.media.clone());
        media.filter(|media| !media.is_empty()).unwrap_or_else(|| vec!["application/json".to_owned()])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_operation_has_been_decided_on() {
        let mut document = crate::openapi();
        for (path, item) in &mut document.paths.paths {
            for (method, operation) in methods(item) {
                let id = operation.operation_id.as_deref().unwrap();
                assert!(access(id).is_some(), "{method} {path}: say in access() which scope `{id}` needs");
            }
        }
    }

    #[test]
    fn a_route_is_found_by_method_and_template() {
        let operations = Operations::shared();
        let needs = |method, path| operations.access(&method, path);
        assert_eq!(needs(Method::GET, "/faces/{id}"), Some(Access::Needs(Scope::Read)));
        assert_eq!(needs(Method::HEAD, "/faces/{id}"), Some(Access::Needs(Scope::Read)));
        assert_eq!(needs(Method::DELETE, "/faces/{id}"), Some(Access::Needs(Scope::Erase)));
        assert_eq!(needs(Method::GET, "/health/live"), Some(Access::Open));
        assert_eq!(needs(Method::PUT, "/faces/{id}"), None);
        assert_eq!(needs(Method::GET, "/elsewhere"), None);
    }
}
