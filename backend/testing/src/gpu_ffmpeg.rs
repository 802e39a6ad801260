//! A program that behaves like ffmpeg on a machine with GPUs. The real ffmpeg decodes on the CPU.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FakeGpu {
    Works,
    /// The GPUs decode to wrong pixels.
    Differs,
    /// The GPUs fail after this number of bytes. Shorter outputs are correct.
    Breaks(u64),
    Missing,
}

/// Writes the program into `folder`. For each process that decodes on a GPU, it adds a line to the
/// file `gpus` in the folder: the number of the GPU and the variable `CUDA_VISIBLE_DEVICES`. Panics
/// if the program cannot be written.
pub fn ffmpeg_with_gpu(folder: &Path, gpu: FakeGpu) -> PathBuf {
    let path = folder.join("ffmpeg-with-gpu");
    let (filter, run) = match gpu {
        FakeGpu::Works => ("", "exec \"$ffmpeg\" \"$@\"".to_owned()),
        FakeGpu::Differs => ("negate,", "exec \"$ffmpeg\" \"$@\"".to_owned()),
        FakeGpu::Breaks(bytes) => (
            "",
            format!(
                "broken=\"$folder/broken.$$\"
                {{ \"$ffmpeg\" \"$@\" 2>/dev/null || : >\"$broken\"; }} | head -c {bytes}
                [ -e \"$broken\" ] || exit 0
                echo '[h264 @ 0x5] [error] cuvidDecodePicture failed' >&2; exit 1"
            ),
        ),
        FakeGpu::Missing => ("", "echo '[CUDA @ 0x5] [error] Cannot load libcuda.so.1' >&2; exit 255".into()),
    };
    let script = format!(
        r#"#!/bin/sh
ffmpeg='{ffmpeg}' folder='{folder}'
case " $* " in *" -hwaccel cuda "*) ;; *) exec "$ffmpeg" "$@" ;; esac
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case "$argument" in
    -hwaccel_device) echo "$1 $CUDA_VISIBLE_DEVICES" >>"$folder/gpus" ;;
    select=*) argument=$(printf %s "$argument" | sed 's/hwdownload,/{filter}/') ;;
    esac
    case "$argument" in
    -hwaccel*) shift && left=$((left - 1)) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
{run}
"#,
        ffmpeg = crate::ffmpeg().display(),
        folder = folder.display(),
    );
    // Another process writes the file. Otherwise, a child that another thread starts at this moment
    // could still have the file open when the program is started.
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat >\"$0\" && chmod 700 \"$0\""]).arg(&path).stdin(Stdio::piped());
    let mut writer = writer.spawn().expect("a shell");
    writer.stdin.take().expect("its input").write_all(script.as_bytes()).expect("the program is written");
    assert!(writer.wait().expect("the shell ends").success());
    path
}
