//! Operations on API keys. A caller with the scope `keys` creates, lists and revokes keys.
mod create;
mod current;
mod list;
mod revoke;
mod view;

#[cfg(feature = "fuzzing")]
pub(crate) use create::CreateKey;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(create::SPEC, routes!(create::create_key))
        .add(list::SPEC, routes!(list::list_keys))
        .add(current::SPEC, routes!(current::get_current_key))
        .add(revoke::SPEC, routes!(revoke::revoke_key))
}
