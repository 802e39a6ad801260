//! Operations on erasures, which delete the data of a person or an address and suppress it.
mod create;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod target;
mod view;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(view::LIST, routes!(view::list_erasures))
        .add(create::SPEC, routes!(create::create_erasure))
        .add(view::LIFT, routes!(view::lift_suppressions))
}
