//! The APIs of other face recognition servers, for clients that already use them.
//!
//! Each module offers one API, and translates its requests to the subjects, faces and searches of
//! this service. The modules store no data of their own. The setting `COMPAT` enables the APIs.
//! docs/how-to/COMPATIBILITY.md lists the differences from the other servers.
pub(crate) mod compreface;
pub(crate) mod deepstack;
mod people;
mod similarity;

use crate::AppState;
use crate::config::Compat;
use crate::operation::Routes;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;

impl Compat {
    /// Returns the routes of the API.
    pub(crate) fn routes(self) -> Routes {
        match self {
            Self::CompreFace => compreface::router(),
            Self::DeepStack => deepstack::router(),
        }
    }

    /// Converts a problem document of this service, which a layer or a handler returned, to an
    /// error of the API. Returns other responses unchanged.
    async fn translate(self, response: Response) -> Response {
        match self {
            Self::CompreFace => compreface::errors::translate(response).await,
            Self::DeepStack => deepstack::translate(response).await,
        }
    }
}

/// Converts error responses under the path of an enabled API to the form of that API.
pub(crate) async fn translate_errors(state: AppState, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let owner = state.config.compat.iter().copied().find(|compat| path.starts_with(compat.path()));
    let response = next.run(request).await;
    match owner {
        Some(compat) => compat.translate(response).await,
        None => response,
    }
}
