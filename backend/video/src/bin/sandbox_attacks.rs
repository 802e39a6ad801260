//! Tries what code of an attacker inside the decoder would try, and prints the result of each
//! attempt as `NAME: allowed` or `NAME: ERROR`. The tests run it in the place of ffmpeg.
//!
//! Arguments: the port of a server on loopback, the process id of the service, and a folder with
//! the file `victim`.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, parent, folder] = arguments.as_slice() else { panic!("three arguments are needed") };
    let folder = Path::new(folder);
    let own = std::env::current_exe().unwrap_or_default();
    let of_service = |name: &str| Path::new("/proc").join(parent).join(name);
    let attempts: [(&str, io::Result<()>); 16] = [
        ("read a file", fs::read("/etc/passwd").map(drop)),
        ("read its memory map", fs::read("/proc/self/maps").map(drop)),
        ("read the service's environment", fs::read(of_service("environ")).map(drop)),
        ("open the service's memory", File::open(of_service("mem")).map(drop)),
        ("open a file of the service", File::open(of_service("fd/0")).map(drop)),
        ("list a folder", fs::read_dir("/").map(drop)),
        ("create a file", File::create(folder.join("created")).map(drop)),
        ("change a file", OpenOptions::new().write(true).open(folder.join("victim")).map(drop)),
        ("control a file", rustix::io::ioctl_fionread(io::stdout()).map(drop).map_err(io::Error::from)),
        ("change its program", OpenOptions::new().write(true).open(&own).map(drop)),
        ("connect", TcpStream::connect(format!("127.0.0.1:{port}")).map(drop)),
        ("send a datagram", UdpSocket::bind("127.0.0.1:0").map(drop)),
        ("connect to a socket file", UnixStream::connect("/run/facecrawl.sock").map(drop)),
        ("start a shell", Command::new("/bin/sh").args(["-c", "exit 0"]).status().map(drop)),
        ("delete a file", fs::remove_file(folder.join("victim"))),
        ("kill the service", kill(parent)),
    ];
    let mut out = io::stdout().lock();
    for (name, result) in attempts {
        let told = result.map_or_else(|error| format!("{:?}", error.kind()), |()| "allowed".into());
        let _ = writeln!(out, "{name}: {told}");
    }
    let variables: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    let _ = writeln!(out, "variables: {variables:?}");
    // Only an open file can be closed.
    let open: Vec<i32> = (5..64).filter(|number| nix::unistd::close(*number).is_ok()).collect();
    let _ = writeln!(out, "further open files: {open:?}");
    let thread = std::thread::spawn(|| 7).join().ok();
    let _ = writeln!(out, "a thread: {thread:?}");
}

/// Sends a signal that has no effect.
fn kill(pid: &str) -> io::Result<()> {
    let pid = pid.parse().ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, Signal::WINCH)?)
}
