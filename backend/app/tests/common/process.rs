//! Runs the binary in a separate folder with a separate environment.
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub struct TestFolder {
    folder: tempfile::TempDir,
}

impl TestFolder {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a command that runs the binary in this folder. Models come from the mirror. The
    /// environment of the test process is not inherited.
    pub fn facecrawl(&self, args: &[&str]) -> Command {
        self.facecrawl_at(env!("CARGO_BIN_EXE_facecrawl"), args)
    }

    /// Returns the same command for another build of the binary.
    pub fn facecrawl_at(&self, binary: impl AsRef<OsStr>, args: &[&str]) -> Command {
        let mut command = Command::new(binary);
        command.args(args).current_dir(self.path()).env_clear().stdin(Stdio::null());
        command.env("ORT_DYLIB_PATH", testing::library());
        command.env("FACE_MODEL_MIRROR", testing::models_dir());
        command
    }

    pub fn run(&self, args: &[&str]) -> Finished {
        Finished::of(&mut self.facecrawl(args))
    }

    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }
}

#[derive(Debug)]
pub struct Finished {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    pub fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.output().unwrap();
        Self {
            status: status.code().expect("the process exited without a signal"),
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8(stderr).unwrap(),
        }
    }

    /// Panics with the whole output if the exit status is not `status`.
    pub fn expect(self, status: i32) -> Self {
        assert_eq!(self.status, status, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Panics if a table on stdout is wider than 100 columns.
    pub fn fits(&self) {
        for line in self.stdout.lines().filter(|line| line.starts_with(['│', '┌', '├', '└', '╞'])) {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
    }

    /// Parses stdout, which must be one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr))
    }
}
