//! Groups, enrols, imports and re-embeds faces of people.

pub mod clusters;
pub mod enrol;
pub mod import;
pub mod reembed;
