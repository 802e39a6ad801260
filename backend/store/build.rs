//! `sqlx::migrate!` embeds the folder at build time; a new or edited migration has to rebuild this crate.
fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
