//! Groups, enrols and re-embeds faces of people.

pub(crate) mod clustering;
pub mod clusters;
pub(crate) mod enrol;
pub(crate) mod reembed;
