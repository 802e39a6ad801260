//! Restricts itself and becomes ffmpeg, for the tests of this crate.
fn main() -> std::process::ExitCode {
    video::sandbox::run_child(std::env::args_os().skip(1))
}
