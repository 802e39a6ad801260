//! What the API says about itself.
use crate::Problem;
use utoipa::OpenApi;
use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};

/// The frame of the document; the operations come from the routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "facecrawl",
        description = "Finds, compares and searches faces in pictures, and crawls the web for them. Errors are `application/problem+json` \
            with a stable `code` and the `request_id` that is also in the header `x-request-id`. Process only pictures that you may \
            lawfully process.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "faces", description = "Find, compare and search faces; stored faces"),
        (name = "images", description = "Stored images and where they were found; quality reports and enhancement"),
        (name = "crawls", description = "Crawls of the web"),
        (name = "collections", description = "The unit of isolation"),
        (name = "jobs", description = "Work in the queue"),
        (name = "system", description = "Devices, health, metrics")
    ),
    components(schemas(Problem)),
)]
pub(crate) struct Frame;

/// Every operation can also answer with a problem that it does not list: bad parameters, overload, a failure.
pub(crate) fn add_default_problem(document: &mut utoipa::openapi::OpenApi) {
    let problem = || {
        ResponseBuilder::new()
            .description(
                "Any other problem: bad parameters (400), overload (429), a failure (500), not ready (503)",
            )
            .content(
                "application/problem+json",
                ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build(),
            )
            .build()
    };
    for item in document.paths.paths.values_mut() {
        for operation in [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten() {
            operation.responses.responses.entry("default".to_owned()).or_insert_with(|| problem().into());
        }
    }
}
