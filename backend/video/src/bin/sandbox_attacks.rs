//! Tries the actions of an attacker inside the decoder, and prints each result as `NAME: allowed`
//! or `NAME: ERROR`. The tests run it instead of ffmpeg.
//!
//! It also repeats the steps with which CUDA starts, and prints `done` instead of `allowed`.
//!
//! Arguments: the port of a server on loopback, the process id of the service, a folder, and the
//! name of an abstract socket of the service. The folder contains the file `victim` and the sockets
//! `service` and `seqpacket service`.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, parent, folder, abstract_name] = arguments.as_slice() else {
        panic!("four arguments are needed")
    };
    let folder = Path::new(folder);
    let program = std::env::current_exe().unwrap_or_default();
    let service_file = |name: &str| Path::new("/proc").join(parent).join(name);
    let attempts: [(&str, io::Result<()>); 25] = [
        ("read a file", fs::read("/etc/passwd").map(drop)),
        ("read its memory map", fs::read("/proc/self/maps").map(drop)),
        ("read the service's environment", fs::read(service_file("environ")).map(drop)),
        ("open the service's memory", File::open(service_file("mem")).map(drop)),
        ("open a file of the service", File::open(service_file("fd/0")).map(drop)),
        ("list a folder", fs::read_dir("/").map(drop)),
        ("create a file", File::create(folder.join("created")).map(drop)),
        ("change a file", OpenOptions::new().write(true).open(folder.join("victim")).map(drop)),
        ("control a file", rustix::io::ioctl_fionread(io::stdout()).map(drop).map_err(io::Error::from)),
        ("change its program", OpenOptions::new().write(true).open(&program).map(drop)),
        ("connect", TcpStream::connect(format!("127.0.0.1:{port}")).map(drop)),
        ("send a datagram", UdpSocket::bind("127.0.0.1:0").map(drop)),
        ("connect to a socket file", UnixStream::connect(folder.join("service")).map(drop)),
        ("listen", TcpListener::bind("127.0.0.1:0").map(drop)),
        ("create a socket file", UnixListener::bind(folder.join("created.socket")).map(drop)),
        ("create a socket file of CUDA's kind", listen(&Address::File(folder.join("seqpacket")))),
        (
            "connect to a socket file of CUDA's kind",
            connect(&Address::File(folder.join("seqpacket service"))),
        ),
        ("connect to an abstract socket", connect(&Address::Abstract(abstract_name.clone()))),
        ("name a thread of the service", fs::write(service_file(&format!("task/{parent}/comm")), "decoder")),
        ("write its memory", OpenOptions::new().write(true).open("/proc/self/mem").map(drop)),
        ("raise its priority", rustix::process::setpriority_process(None, -1).map_err(io::Error::from)),
        ("lower the priority of the service", lower_priority(parent)),
        ("start a shell", Command::new("/bin/sh").args(["-c", "exit 0"]).status().map(drop)),
        ("delete a file", fs::remove_file(folder.join("victim"))),
        ("kill the service", kill(parent)),
    ];
    let mut out = io::stdout().lock();
    for (name, result) in attempts {
        let outcome = result.map_or_else(|error| format!("{:?}", error.kind()), |()| "allowed".into());
        let _ = writeln!(out, "{name}: {outcome}");
    }
    let cuda_steps: [(&str, io::Result<()>); 4] = [
        ("name a thread", name_thread()),
        ("wait for other processes", listen(&Address::Abstract(format!("cuda-{}", std::process::id())))),
        ("read its state", fs::read("/proc/self/status").map(drop)),
        ("list its open files", fs::read_dir("/proc/self/fd").map(drop)),
    ];
    for (name, result) in cuda_steps {
        let outcome = result.map_or_else(|error| format!("{:?}", error.kind()), |()| "done".into());
        let _ = writeln!(out, "{name}: {outcome}");
    }
    let variables: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    let _ = writeln!(out, "variables: {variables:?}");
    // Only an open file can be closed.
    let open_files: Vec<i32> = (5..64).filter(|number| nix::unistd::close(*number).is_ok()).collect();
    let _ = writeln!(out, "further open files: {open_files:?}");
    let thread = std::thread::spawn(|| 7).join().ok();
    let _ = writeln!(out, "a thread: {thread:?}");
}

/// The address of a Unix socket.
enum Address {
    File(PathBuf),
    Abstract(String),
}

impl Address {
    fn unix(&self) -> io::Result<SocketAddrUnix> {
        Ok(match self {
            Self::File(path) => SocketAddrUnix::new(path)?,
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        })
    }
}

/// Creates a socket of the kind that CUDA uses.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn listen(address: &Address) -> io::Result<()> {
    let socket = socket()?;
    rustix::net::bind(&socket, &address.unix()?)?;
    Ok(rustix::net::listen(&socket, 1)?)
}

fn connect(address: &Address) -> io::Result<()> {
    Ok(rustix::net::connect(socket()?, &address.unix()?)?)
}

/// Names the first thread as CUDA names its threads.
fn name_thread() -> io::Result<()> {
    fs::write(format!("/proc/self/task/{}/comm", std::process::id()), "decoder")
}

fn lower_priority(pid: &str) -> io::Result<()> {
    let pid = pid.parse().ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::setpriority_process(Some(pid), 1)?)
}

/// Sends a signal that has no effect.
fn kill(pid: &str) -> io::Result<()> {
    let pid = pid.parse().ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, Signal::WINCH)?)
}
