//! `/subjects`
mod enrol;
mod people;
