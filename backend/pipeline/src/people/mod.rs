//! Groups, enrols and re-embeds faces of people.

pub mod clusters;
pub(crate) mod enrol;
pub(crate) mod reembed;
