//! Rebuilds this crate when a migration changes, because `sqlx::migrate!` embeds the folder at
//! build time.
fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
