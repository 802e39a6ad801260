//! Tests that code inside the decoder's process can only decode, and tests how processes end.
use super::{config, decoder, decoder_with_script};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;
use testing::film::{Codec, Container, Encoding, Film, repeat};
use video::sampling::{MAX_GAP_US, plan};
use video::sandbox::FileAccess;
use video::{Decoder, Launcher, Limits, Sampling, VideoError};

/// The restrictions of the process that tries the attacks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Setup {
    NoSandbox,
    Sandbox,
    SandboxWithoutLandlock,
    SandboxWithGpu,
}

fn listen(address: &SocketAddrUnix) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, address).unwrap();
    rustix::net::listen(&socket, 4).unwrap();
    socket
}

fn run_attacks(setup: Setup) -> BTreeMap<String, String> {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "kept").unwrap();
    let pid = std::process::id().to_string();
    let _service = UnixListener::bind(folder.path().join("service")).unwrap();
    let _cuda_like_sockets = [
        listen(&SocketAddrUnix::new(folder.path().join("seqpacket service")).unwrap()),
        listen(&SocketAddrUnix::new_abstract_name(format!("service-{pid}-{setup:?}").as_bytes()).unwrap()),
    ];
    // A file without the flag `O_CLOEXEC`, as a library of the service might open it.
    let leaked =
        rustix::fs::open("/etc/hostname", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    let attacks = env!("CARGO_BIN_EXE_sandbox-attacks");
    let mut command = if setup != Setup::NoSandbox {
        let mut command = Command::new(env!("CARGO_BIN_EXE_decode-child"));
        command.args((setup == Setup::SandboxWithoutLandlock).then_some("--without-landlock"));
        command.args((setup == Setup::SandboxWithGpu).then_some("gpu")).args([pid.as_str(), "10", attacks]);
        command
    } else {
        Command::new(attacks)
    };
    command
        .args([&port, &pid])
        .arg(folder.path())
        .arg(format!("service-{pid}-{setup:?}"))
        .env("SECRET", "of the service");
    let output = command.env("CUDA_VISIBLE_DEVICES", "0").output().unwrap();
    drop(leaked);
    if setup != Setup::NoSandbox {
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "kept");
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    let results: BTreeMap<String, String> =
        lines.map(|(name, result)| (name.into(), result.into())).collect();
    assert!(results.len() > 10, "{text}{}", String::from_utf8_lossy(&output.stderr));
    results
}

#[cfg(target_os = "linux")]
#[test]
fn sandbox_blocks_every_attack_from_decoder() {
    let unrestricted = run_attacks(Setup::NoSandbox);
    for name in [
        "read a file",
        "list a folder",
        "create a file",
        "change a file",
        "control a file",
        "connect",
        "connect to a socket file",
        "connect to a socket file of CUDA's kind",
        "connect to an abstract socket",
        "write its memory",
        "listen",
        "create a socket file",
        "create a socket file of CUDA's kind",
        "lower the priority of the service",
        "start a shell",
        "kill the service",
    ] {
        assert_eq!(unrestricted[name], "allowed", "the attack {name} works without a sandbox");
    }
    assert!(unrestricted["variables"].contains("SECRET"));
    assert_ne!(unrestricted["further open files"], "[]");

    let results = run_attacks(Setup::Sandbox);
    assert!(results.values().all(|result| result != "allowed"), "{results:#?}");
    assert_eq!(results["read a file"], "PermissionDenied");
    assert_eq!(results["start a shell"], "PermissionDenied");
    assert_eq!(results["delete a file"], "PermissionDenied");
    assert_eq!(results["connect"], "PermissionDenied");
    assert_eq!(results["variables"], "[]");
    assert_eq!(results["further open files"], "[]");
    assert_eq!(results["a thread"], "Some(7)", "decoders use threads");
}

/// A decoder on a GPU may make more system calls, but only on the files of the driver.
#[cfg(target_os = "linux")]
#[test]
fn sandbox_blocks_every_attack_from_gpu_decoder() {
    let mut results = run_attacks(Setup::SandboxWithGpu);
    assert_eq!(results.remove("read its memory map").unwrap(), "allowed", "CUDA reads it");
    assert!(results.values().all(|result| result != "allowed"), "{results:#?}");
    for name in [
        "read a file",
        "create a file",
        "change a file",
        "connect",
        "listen",
        "create a socket file of CUDA's kind",
        "lower the priority of the service",
        "start a shell",
        "control a file",
    ] {
        assert_eq!(results[name], "PermissionDenied", "{name}");
    }
    for name in ["connect to a socket file of CUDA's kind", "connect to an abstract socket", "delete a file"]
    {
        assert_eq!(results[name], "NotFound", "CUDA expects this: {name}");
    }
    for name in ["name a thread", "wait for other processes", "read its state", "list its open files"] {
        assert_eq!(results[name], "done", "CUDA starts only with this: {name}");
    }
    assert_eq!(results["variables"], "[\"CUDA_CACHE_DISABLE\", \"CUDA_VISIBLE_DEVICES\"]");
    assert_eq!((&results["further open files"], &results["a thread"]), (&"[]".into(), &"Some(7)".into()));
}

/// A decoder on a GPU can open files for writing, and only Landlock limits which files.
#[cfg(target_os = "linux")]
#[test]
fn gpu_decoder_requires_landlock() {
    let pid = std::process::id().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_decode-child"));
    let output = command.args(["--without-landlock", "gpu", &pid, "10", "/bin/true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(String::from_utf8_lossy(&output.stderr).contains("needs Landlock"));
}

/// Without Landlock, files can be read, but nothing of the service's process.
#[cfg(target_os = "linux")]
#[testing::needs(video)]
#[test]
fn decoder_cannot_read_service_process_without_landlock() {
    let mut config = config(&testing::ffmpeg());
    if let Launcher::Sandbox { arguments, .. } = &mut config.launcher {
        arguments.push("--without-landlock".into());
    }
    assert_eq!(Decoder::open(config).unwrap().sandbox_info().files, FileAccess::ReadOnly);
    let mut results = run_attacks(Setup::SandboxWithoutLandlock);
    for name in ["read a file", "read its memory map", "list a folder"] {
        assert_eq!(results.remove(name).unwrap(), "allowed", "{name}");
    }
    assert_eq!(results["read the service's environment"], "PermissionDenied");
    assert!(results.values().all(|result| result != "allowed"), "{results:#?}");
}

#[testing::needs(video)]
#[test]
fn ffmpeg_runs_in_sandbox_and_reports_version() {
    let info = decoder().sandbox_info().clone();
    assert!(info.version.starts_with("ffmpeg version "), "{info:?}");
    assert_ne!(info.files, FileAccess::Unrestricted);
    let mut direct = config(&testing::ffmpeg());
    direct.launcher = Launcher::Direct;
    assert_eq!(Decoder::open(direct).unwrap().sandbox_info().files, FileAccess::Unrestricted);
}

#[test]
fn invalid_ffmpeg_program_is_named_in_error() {
    for (program, part) in [("/bin/true", "6.0 or newer"), ("/no/such/ffmpeg", "/no/such/ffmpeg")] {
        let error = Decoder::open(config(program.as_ref())).unwrap_err();
        assert!(matches!(error, VideoError::Unavailable(_)));
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn sandbox_child_without_parent_does_not_start() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_decode-child")).args(["1", "10", "/bin/true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the service has ended"));
}

/// Timeout of a test in which a stall is the expected result.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of a test in which a stall must not be the result.
const LONG_TIMEOUT: Duration = testing::MAX_WAIT;

/// Shell command that prints the lines about a packet.
const PRINT_PACKET: &str =
    "printf '#tb 0: 1/25\n#codec_id 0: h264\n#dimensions 0: 16x16\n0, 0, 0, 1, 1, 0x0\n'";

/// Runs `script` instead of ffmpeg and reads its output as the index of a file. The script is
/// stopped as stalled if it uses almost no processor time for `stall_timeout`.
fn index_of_script(script: &str, stall_timeout: Duration) -> Result<video::Index, VideoError> {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { stall_timeout, ..Limits::default() };
    decoder_with_script(folder.path(), script, limits).index(&tempfile::tempfile().unwrap())
}

#[test]
fn busy_process_without_output_is_not_stalled() {
    let busy_loop = "i=0; while [ $i -lt 1500000 ]; do i=$((i+1)); done";
    let index = index_of_script(&format!("{busy_loop}; {PRINT_PACKET}"), SHORT_TIMEOUT).unwrap();
    assert_eq!((index.width, index.keyframes_us), (16, vec![0]));
    assert!(matches!(index_of_script("kill -STOP $$", SHORT_TIMEOUT), Err(VideoError::Stalled(_))));
}

#[test]
fn killed_process_is_not_reported_as_cpu_limit() {
    let error = index_of_script("kill -9 $$", LONG_TIMEOUT).unwrap_err();
    assert!(matches!(error, VideoError::Killed), "{error}");
    let error = index_of_script("kill -XCPU $$", LONG_TIMEOUT).unwrap_err();
    assert!(matches!(error, VideoError::CpuLimit(_)), "{error}");
}

#[test]
fn crash_after_first_packets_is_reported_as_damage() {
    let damage =
        index_of_script(&format!("{PRINT_PACKET}; kill -SEGV $$"), LONG_TIMEOUT).unwrap().damage.unwrap();
    assert!(damage.message.contains("signal: 11"), "{damage:?}");
}

#[test]
fn cancelling_ends_decoder_process() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    // The process holds the pipe until it ends.
    let script = format!("exec 3> {}; echo started >&3; kill -STOP $$", fifo.display());
    let decoder = decoder_with_script(folder.path(), &script, Limits::default());
    let (decoder, guard) = decoder.cancellable().unwrap();
    let call = std::thread::spawn(move || decoder.index(&tempfile::tempfile().unwrap()));
    let mut started = [0; 8];
    let mut pipe = File::open(fifo).unwrap();
    pipe.read_exact(&mut started).unwrap();
    drop(guard);
    assert!(matches!(call.join().unwrap(), Err(VideoError::Cancelled)));
    assert_eq!(pipe.read(&mut started).unwrap(), 0, "the process has ended");
}

#[testing::needs(video)]
#[test]
fn all_processes_of_video_share_cpu_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (short, long) = (folder.path().join("short.mkv"), folder.path().join("long.mkv"));
    let encoding = Encoding::new(Codec::H264, Container::Mkv);
    let mut film = Film::standard();
    film.shots.truncate(1);
    film.encode(&encoding, &short).unwrap();
    repeat(&short, 30, &encoding, &long).unwrap();
    let file = File::open(long).unwrap();
    let mut config = decoder().config().clone();
    config.limits.max_cpu = Duration::from_secs(1);
    let decoder = Decoder::open(config).unwrap();
    let index = decoder.index(&file).unwrap();
    let segments = plan(&index, Sampling::Fps(30.0), MAX_GAP_US);
    let mut frames = decoder.frames(&file, &index, &segments[0]).unwrap();
    let mut count = 0;
    let error = loop {
        match frames.next_frame() {
            Ok(Some(frame)) => frames.recycle(frame.frame),
            Ok(None) => panic!("{count} frames were decoded in a second"),
            Err(error) => break error,
        }
        count += 1;
    };
    assert!(count > 0 && matches!(error, VideoError::CpuLimit(_)), "{count} {error}");
    let next = decoder.frames(&file, &index, &segments[0]).err().unwrap();
    assert!(matches!(next, VideoError::CpuLimit(_)), "{next}");
}
