//! The REST API of CompreFace 1.2 at `/api/v1`: recognition, detection and verification.
//!
//! Source of paths, parameters and responses: `docs/Rest-API-description.md` of CompreFace; source
//! of the error codes: `CommonExceptionCode.java`. Clients send a key of facecrawl in the
//! header `x-api-key`. In CompreFace, a key selects a "service" with its own subjects. Here, it
//! selects a collection: the collection of the key, else `default`. The image id of an example is
//! the id of the stored face.
pub(super) mod errors;
mod examples;
mod images;
mod recognition;
mod subjects;
mod verification;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(super) fn router() -> Routes {
    Routes::default()
        .add(subjects::READ, routes!(subjects::list_subjects))
        .add(subjects::READ, routes!(subjects::list_subjects_with_slash))
        .add(subjects::WRITE, routes!(subjects::create_subject))
        .add(subjects::WRITE, routes!(subjects::rename_subject))
        .add(subjects::ERASE, routes!(subjects::delete_subject))
        .add(subjects::ERASE, routes!(subjects::delete_all_subjects))
        .add(examples::WRITE, routes!(examples::add_example))
        .add(examples::READ, routes!(examples::list_examples))
        .add(examples::READ, routes!(examples::get_image))
        .add(examples::ERASE, routes!(examples::delete_examples_of_subject))
        .add(examples::ERASE, routes!(examples::delete_example))
        .add(examples::ERASE, routes!(examples::delete_several_examples))
        .add(recognition::SEARCH, routes!(recognition::recognize))
        .add(recognition::SEARCH, routes!(recognition::recognize_embeddings))
        .add(recognition::ANALYZE, routes!(recognition::detect))
        .add(verification::SEARCH, routes!(verification::verify_example))
        .add(verification::SEARCH, routes!(verification::verify_example_embeddings))
        .add(verification::ANALYZE, routes!(verification::verify))
        .add(verification::ANALYZE, routes!(verification::verify_embeddings))
}
