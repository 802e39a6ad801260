//! Tests decoding on GPUs with a program that replaces ffmpeg and behaves as on a machine with
//! GPUs, and with the real ffmpeg on a machine without a GPU.

use super::frames::{
    EVERY_FRAME, TestVideo, decode_all, decode_segments, encode, expected_frames, short_film,
};
use super::live::{decode_with, encoded, stream};
use super::{config, decoder};
use std::path::Path;
use std::sync::{Arc, Mutex};
use testing::film::{Codec, Container, Encoding};
use testing::{FakeGpu, ffmpeg_with_gpu};
use video::sampling::{MAX_GAP_US, plan};
use video::{Config, Decoder, GpuError, Gpus, Launcher, LiveContainer, VideoError};

/// Returns a decoder whose program behaves as with this GPU. It has no sandbox, because the program
/// is a shell script.
fn decoder_on(folder: &Path, gpu: FakeGpu) -> Decoder {
    let program = ffmpeg_with_gpu(folder, gpu);
    Decoder::open(Config { launcher: Launcher::Direct, ..config(&program) }).unwrap()
}

/// Returns the decoder with two GPUs, and the reasons for which the CPU took over.
fn with_gpus(decoder: &Decoder, force_gpu: bool) -> (Decoder, Arc<Mutex<Vec<String>>>) {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let log = reasons.clone();
    let on_fallback = Box::new(move |reason: &str| log.lock().unwrap().push(reason.to_owned()));
    let variables = vec![("CUDA_VISIBLE_DEVICES", "0,1".into())];
    let gpus = Gpus { ids: vec![1, 0], variables, force_gpu, on_fallback };
    (decoder.with_gpus(gpus), reasons)
}

/// Returns the lines that the processes on GPUs wrote.
fn gpu_log(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("gpus")).unwrap_or_default();
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn film(encoding: Encoding) -> TestVideo {
    encode(&short_film(), &encoding)
}

#[testing::needs(video)]
#[test]
fn gpu_check_requires_same_frames_as_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let variables = || vec![("CUDA_VISIBLE_DEVICES", "2".into())];
    decoder_on(folder.path(), FakeGpu::Works).check_gpu(3, variables()).unwrap();
    assert_eq!(gpu_log(folder.path()), ["3 2"]);
    let differs = decoder_on(folder.path(), FakeGpu::Differs).check_gpu(0, variables()).unwrap_err();
    assert!(matches!(&differs, GpuError::Differs(text) if text == "10 of 10 frames differ"), "{differs}");
    let missing = decoder_on(folder.path(), FakeGpu::Missing).check_gpu(0, variables()).unwrap_err();
    assert!(matches!(&missing, GpuError::Failed(text) if text.contains("libcuda.so.1")), "{missing}");
}

/// No machine has a GPU with this number.
#[testing::needs(video)]
#[test]
fn missing_gpu_fails_instead_of_using_cpu() {
    let failed = decoder().check_gpu(250, Vec::new()).unwrap_err();
    assert!(matches!(&failed, GpuError::Failed(text) if !text.is_empty()), "{failed}");
    let (strict, _) = with_gpus(&decoder(), true);
    let clip = film(Encoding::new(Codec::H264, Container::Mp4));
    let index = strict.index(&clip.file).unwrap();
    let gpus = Gpus { ids: vec![250], variables: Vec::new(), force_gpu: true, on_fallback: Box::new(|_| {}) };
    let segment = plan(&index, EVERY_FRAME, MAX_GAP_US).remove(0);
    let first = strict.with_gpus(gpus).frames(&clip.file, &index, &segment).unwrap().next_frame();
    assert!(matches!(first, Err(VideoError::GpuFailed(_))), "{first:?}");
}

#[testing::needs(video)]
#[test]
fn gpu_decodes_every_pixel_layout() {
    let folder = tempfile::tempdir().unwrap();
    let (decoder, reasons) = with_gpus(&decoder_on(folder.path(), FakeGpu::Works), true);
    let ten_bits = Encoding { hdr: true, ..Encoding::new(Codec::Hevc, Container::Mp4) };
    for encoding in [Encoding::new(Codec::H264, Container::Ts), ten_bits] {
        let clip = film(encoding);
        assert_eq!(decode_all(&decoder, &clip), expected_frames(&clip.truth));
    }
    assert!(reasons.lock().unwrap().is_empty());
    assert_eq!(gpu_log(folder.path()), ["1 0,1", "1 0,1"]);
}

#[testing::needs(video)]
#[test]
fn cpu_continues_after_gpu_failure_unless_gpu_only() {
    let folder = tempfile::tempdir().unwrap();
    let broken = decoder_on(folder.path(), FakeGpu::Breaks(8_000_000));
    let clip = film(Encoding { keyframe_interval: 5, ..Encoding::new(Codec::H264, Container::Mp4) });
    let (decoder, reasons) = with_gpus(&broken, false);
    let index = decoder.index(&clip.file).unwrap();
    let segments = plan(&index, EVERY_FRAME, MAX_GAP_US);
    assert_eq!(decode_segments(&decoder, &clip, &index, &segments), expected_frames(&clip.truth));
    assert_eq!(*reasons.lock().unwrap(), ["cuvidDecodePicture failed"]);
    // The CPU decodes the rest of the video, and the next video begins on a GPU.
    assert_eq!(decode_segments(&decoder, &clip, &index, &segments), expected_frames(&clip.truth));
    assert_eq!((reasons.lock().unwrap().len(), gpu_log(folder.path()).len()), (1, 1));
    assert_eq!(decode_all(&decoder, &clip), expected_frames(&clip.truth));
    assert_eq!((reasons.lock().unwrap().len(), gpu_log(folder.path()).len()), (2, 2));

    let (strict, _) = with_gpus(&broken, true);
    let index = strict.index(&clip.file).unwrap();
    let mut frames = strict.frames(&clip.file, &index, &segments[0]).unwrap();
    let error = std::iter::repeat_with(|| frames.next_frame()).find_map(Result::err).unwrap();
    assert!(matches!(&error, VideoError::GpuFailed(text) if text == "cuvidDecodePicture failed"), "{error}");
    let missing = with_gpus(&decoder_on(folder.path(), FakeGpu::Missing), false);
    assert_eq!(
        decode_all(&missing.0, &clip),
        expected_frames(&clip.truth),
        "without a GPU from the first frame"
    );
}

#[testing::needs(video)]
#[test]
fn video_unsupported_by_gpu_is_decoded_by_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let works = decoder_on(folder.path(), FakeGpu::Works);
    let clip = film(Encoding { rotation: 90, ..Encoding::new(Codec::H264, Container::Mp4) });
    let (decoder, reasons) = with_gpus(&works, false);
    assert_eq!(decode_all(&decoder, &clip), expected_frames(&clip.truth));
    assert_eq!(*reasons.lock().unwrap(), ["frames on a GPU cannot be rotated or mirrored"]);
    assert_eq!(gpu_log(folder.path()), Vec::<String>::new());
    let (strict, _) = with_gpus(&works, true);
    let index = strict.index(&clip.file).unwrap();
    let segment = plan(&index, EVERY_FRAME, MAX_GAP_US).remove(0);
    let error = strict.frames(&clip.file, &index, &segment).err().unwrap();
    assert!(matches!(&error, VideoError::GpuOnly(text) if text.contains("rotated")), "{error}");
}

#[testing::needs(video)]
#[test]
fn camera_is_decoded_on_gpu_until_it_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (file, truth) = encoded(Codec::H264, Container::Mkv);
    let expected: Vec<(i64, u32)> = truth.frames.iter().map(|frame| (frame.at_us, frame.index)).collect();
    let (decoder, reasons) = with_gpus(&decoder_on(folder.path(), FakeGpu::Works), false);
    let camera = stream(LiveContainer::Matroska, 1);
    assert_eq!(decode_with(&decoder, file.clone(), &camera).unwrap(), expected);
    assert_eq!(gpu_log(folder.path()), ["1 0,1"]);
    assert!(reasons.lock().unwrap().is_empty());

    let (decoder, reasons) = with_gpus(&decoder_on(folder.path(), FakeGpu::Missing), false);
    assert!(matches!(decode_with(&decoder, file.clone(), &camera), Err(VideoError::Undecodable(_))));
    assert_eq!(decode_with(&decoder, file.clone(), &camera).unwrap(), expected, "the CPU decodes now");
    assert_eq!(reasons.lock().unwrap().len(), 1);
    let (strict, _) = with_gpus(&decoder_on(folder.path(), FakeGpu::Missing), true);
    let camera = stream(LiveContainer::Matroska, 1);
    assert!(matches!(decode_with(&strict, file, &camera), Err(VideoError::GpuFailed(_))));
}
