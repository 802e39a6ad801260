//! Tests the script with a Python that downloads nothing.
use super::root;
use crate::common::process::Finished;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A checkout that contains only the script. Its `python3` runs `fetches` instead of pip and counts
/// its calls.
struct Checkout(tempfile::TempDir);

impl Checkout {
    fn new(fetches: &str) -> Self {
        let checkout = Self(tempfile::tempdir().unwrap());
        for file in ["gpu-runtime", "gpu-wheels.txt"] {
            let to = checkout.path().join("scripts").join(file);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(root().join("scripts").join(file), to).unwrap();
        }
        checkout.program("bin/python3", "exit 0");
        checkout
            .program("scripts/unpack-wheels", &format!("echo \"$2\" >>calls\nmkdir -p \"$3\"\n{fetches}"));
        checkout
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, args: &[&str]) -> Finished {
        let paths = format!("{}:{}", self.path().join("bin").display(), std::env::var("PATH").unwrap());
        Finished::of(Command::new(self.path().join("scripts/gpu-runtime")).args(args).env("PATH", paths))
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.path().join("calls")).unwrap_or_default()
    }
}

#[test]
fn the_libraries_are_fetched_once_and_again_when_the_list_changes() {
    let checkout = Checkout::new("echo here >\"$3/libonnxruntime.so\"");
    let first = checkout.run(&[]).expect(0);
    let said: Vec<&str> = first.stderr.lines().collect();
    assert!(said[0].contains("1.6 GB to download, 2.5 GB on disk"), "the size comes first: {said:?}");
    assert_eq!(checkout.calls(), "onnxruntime-gpu\nnvidia-\n");
    assert!(checkout.path().join(".runtime/cuda/libonnxruntime.so").exists());
    assert!(!checkout.path().join(".runtime/.cuda").exists(), "the temporary folder is removed");

    assert_eq!(checkout.run(&["cuda"]).expect(0).stderr, "");
    let list = checkout.path().join("scripts/gpu-wheels.txt");
    let text = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, text.replace("onnxruntime-migraphx==", "onnxruntime-migraphx==9.")).unwrap();
    assert_eq!(checkout.run(&[]).expect(0).stderr, "", "a change of AMD's list has no effect");
    std::fs::write(&list, text.replace("nvidia-cublas==", "nvidia-cublas==9.")).unwrap();
    checkout.run(&[]).expect(0);
    assert_eq!(checkout.calls().lines().count(), 4);
}

#[test]
fn what_could_not_be_fetched_leaves_what_was_there() {
    let checkout = Checkout::new("[ \"$2\" = onnxruntime-gpu ]");
    let failed = checkout.run(&[]).expect(1);
    assert!(failed.stderr.contains("could not be fetched"), "{}", failed.stderr);
    let left = |name: &str| checkout.path().join(".runtime").join(name).exists();
    assert!(!left("cuda") && !left(".cuda"), "complete or absent");

    let old = checkout.path().join(".runtime/cuda/libonnxruntime.so");
    std::fs::create_dir_all(old.parent().unwrap()).unwrap();
    std::fs::write(&old, "an older one").unwrap();
    checkout.run(&[]).expect(1);
    assert_eq!(std::fs::read_to_string(old).unwrap(), "an older one");
}

#[test]
fn other_machines_and_makers_are_told_what_there_is() {
    let checkout = Checkout::new("true");
    let wrong = checkout.run(&["magic"]).expect(1).stderr;
    assert!(wrong.contains("allowed: cuda, rocm"), "{wrong}");
    let amd = checkout.run(&["rocm"]).expect(1).stderr;
    assert!(amd.contains("ROCm 7.2.4") && amd.contains("onnxruntime-migraphx .runtime/rocm"), "{amd}");
    checkout.program("bin/uname", "[ \"$1\" = -s ] && echo Linux || echo aarch64");
    let elsewhere = checkout.run(&[]).expect(1).stderr;
    assert!(elsewhere.contains("Linux aarch64") && elsewhere.contains("ORT_DYLIB_PATH"), "{elsewhere}");
    checkout.program("bin/uname", "[ \"$1\" = -s ] && echo Linux || echo x86_64");
    checkout.program("bin/df", "echo header; echo disk 0 0 2000000 0 /");
    let full = checkout.run(&[]).expect(1).stderr;
    assert!(full.contains("5 GB") && full.contains("there are 2 GB"), "{full}");
    assert_eq!(checkout.calls(), "");
}
