//! Runs the MQTT broker mosquitto. A test that uses it needs the capability `mqtt`.
use crate::ReservedPort;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The only user, and its password.
pub const USER: &str = "faces";
pub const PASSWORD: &str = "correct horse 17";

/// Certificates of a broker, in PEM form.
pub struct ServerIdentity {
    pub certificate: String,
    pub key: String,
}

/// A broker on a port of its own on 127.0.0.1, which requires [`USER`] and [`PASSWORD`]. It keeps
/// sessions and retained messages when it is stopped and started again.
pub struct Mosquitto {
    folder: tempfile::TempDir,
    port: ReservedPort,
    process: Option<Child>,
}

impl Mosquitto {
    pub fn start() -> Self {
        Self::with_tls(None)
    }

    /// Starts a broker. With an identity, it accepts only connections with TLS.
    pub fn with_tls(identity: Option<&ServerIdentity>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = ReservedPort::new();
        let path = |name: &str| folder.path().join(name);
        let mut config = format!(
            "user root\nlistener {} 127.0.0.1\nallow_anonymous false\npassword_file {}\npersistence true\n\
             persistence_location {}/\nmax_queued_messages 0\nlog_type none\n",
            port.number(),
            path("passwords").display(),
            folder.path().display(),
        );
        if let Some(ServerIdentity { certificate, key }) = identity {
            fs::write(path("certificate.pem"), certificate).expect("a writable folder");
            fs::write(path("key.pem"), key).expect("a writable folder");
            config += &format!(
                "certfile {}\nkeyfile {}\n",
                path("certificate.pem").display(),
                path("key.pem").display()
            );
        }
        fs::write(path("mosquitto.conf"), config).expect("a writable folder");
        let mut create = program("mosquitto_passwd");
        create.args(["-b", "-c"]).arg(path("passwords")).args([USER, PASSWORD]);
        assert!(create.status().expect("mosquitto_passwd starts").success());
        let mut broker = Self { folder, port, process: None };
        broker.resume();
        broker
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Stops the broker. It saves sessions and retained messages.
    pub fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let id = rustix::process::Pid::from_child(&process);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("the broker runs");
        process.wait().expect("the broker ends");
    }

    /// Starts a stopped broker again, on the same port.
    pub fn resume(&mut self) {
        let config: PathBuf = self.folder.path().join("mosquitto.conf");
        let started = program("mosquitto").arg("-c").arg(&config).stdout(Stdio::null()).spawn();
        let process = self.process.insert(started.expect("mosquitto starts"));
        let limit = Instant::now() + crate::MAX_WAIT;
        while TcpStream::connect(self.port.address()).is_err() {
            let ended = process.try_wait().expect("the state of a process");
            assert!(ended.is_none(), "mosquitto ended: {ended:?}");
            assert!(Instant::now() < limit, "mosquitto does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ended = process.kill().and_then(|()| process.wait());
        }
    }
}

/// Returns a command for a program that Debian installs in /usr/sbin.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
    command
}
