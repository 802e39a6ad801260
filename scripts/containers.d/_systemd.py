"""A container in which systemd runs as the first process."""
import contextlib
import json
import pathlib
import subprocess
import time

import _bases
from _engine import docker, skip

# What systemd needs in a container. `--privileged` would also pass the devices of the host on.
CAPABILITIES = ["SYS_ADMIN", "SYS_PTRACE", "SYS_NICE", "NET_ADMIN", "SYS_TIME", "SYSLOG", "DAC_READ_SEARCH", "IPC_OWNER", "LINUX_IMMUTABLE", "AUDIT_CONTROL"]
# Without libnss-systemd, the users of DynamicUser have no names, and initdb fails.
PACKAGES = ["systemd", "systemd-sysv", "dbus", "libnss-systemd", "curl", "python3"]


def say(text):
    print(f"units: {text}", flush=True)


def fail(reason):
    raise SystemExit(f"units: {reason}")


class Host:
    """A running container."""

    def __init__(self, container):
        self.container = container

    def attempt(self, command, seconds=90):
        """Runs a shell command. Returns its exit status and its output."""
        done = subprocess.run(["docker", "exec", self.container, "timeout", str(seconds), "sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout.strip()

    def run(self, command, seconds=90):
        status, output = self.attempt(command, seconds)
        if status:
            fail(f"{command}: status {status}\n{output}\n{self.attempt('journalctl --no-pager --lines=40 --output=cat')[1]}")
        return output

    def write(self, path, text, mode="644"):
        subprocess.run(["docker", "exec", "--interactive", self.container, "sh", "-c", f"umask 077; cat >{path}; chmod {mode} {path}"], input=text, text=True, check=True)

    def copy(self, source, target):
        docker("cp", source, f"{self.container}:{target}")

    def shows(self, unit, name):
        """Returns a property of a unit."""
        return self.run(f"systemctl show --property={name} --value {unit}")

    def call(self, url, *options):
        """Sends a request with curl and returns its JSON response."""
        return json.loads(self.run(" ".join(["curl --silent --show-error --fail-with-body --max-time 60", *options, f"'{url}'"])))

    def wait_for(self, what, condition, seconds=120):
        until = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > until:
                fail(f"{what}: not within {seconds} s\n{self.attempt('journalctl --no-pager --lines=40 --output=cat')[1]}")
            time.sleep(0.2)
        return value

    def wait_ready(self, port):
        self.wait_for(f"port {port} is ready", lambda: self.attempt(f"curl --silent --fail --max-time 5 http://127.0.0.1:{port}/health/ready")[0] == 0)


def cgroup2():
    """Returns the folder of the version 2 control groups, which this version of systemd needs."""
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if (pathlib.Path(folder) / "cgroup.controllers").exists():
            return folder
    return skip("this machine has no control groups of version 2")


@contextlib.contextmanager
def booted(scratch, base):
    """Yields a `Host` with the Debian image `base`. Its processes share no network with this
    machine."""
    image = f"facecrawl-test-systemd:{base.partition(':')[2]}"
    _bases.built(scratch, image, f"FROM {_bases.debian(scratch, base)}", _bases.install(*PACKAGES))
    options = [f"--cap-add={name}" for name in CAPABILITIES]
    options += ["--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined", "--cgroupns=host", f"--volume={cgroup2()}:/sys/fs/cgroup:rw"]
    options += ["--tmpfs=/run", "--tmpfs=/run/lock", "--tmpfs=/tmp", "--env=container=docker", "--network=none"]
    container = docker("run", "--detach", *options, image, "/lib/systemd/systemd")
    host = Host(container)
    try:
        until = time.monotonic() + 60
        while (state := host.attempt("systemctl is-system-running")[1]) not in ("running", "degraded"):
            if time.monotonic() > until:
                skip(f"systemd does not start in a container here ({state}):\n{docker('logs', container, stderr=subprocess.STDOUT)[-2000:]}")
            time.sleep(0.5)
        say(f"{host.run('systemctl --version').splitlines()[0]} is {state}")
        yield host
    finally:
        docker("rm", "--force", "--volumes", container, stderr=subprocess.DEVNULL)
