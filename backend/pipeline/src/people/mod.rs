//! Groups, enrols and re-embeds faces of people.

pub mod clusters;
pub mod enrol;
pub mod reembed;
