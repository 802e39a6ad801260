mod enrol;
mod people;
