//! The facecrawl binary.
fn main() {}
