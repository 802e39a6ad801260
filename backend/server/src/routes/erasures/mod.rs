//! Operations on erasures, which delete the data of a person or an address and suppress it.
mod create;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod lift;
mod list;
mod target;
mod threshold;
mod view;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(list::SPEC, routes!(list::list_erasures))
        .add(create::SPEC, routes!(create::create_erasure))
        .add(lift::SPEC, routes!(lift::lift_suppressions))
}
