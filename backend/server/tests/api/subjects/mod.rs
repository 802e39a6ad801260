//! Tests `/subjects`.
mod enrol;
mod people;
