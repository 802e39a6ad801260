"""Makes a stand-in for each base image that the engine does not have. It pulls nothing: `docker pull`
the published images first to test with them.

Each stand-in has the name of the image that it replaces, so the Dockerfiles and the compose file
are used unchanged. Remove the stand-ins before a build for others. Debian comes from debootstrap
with the package sources and certificates of this machine, Rust from the installed toolchain, and
Postgres with pgvector from the wheel that the program uses.
"""
import pathlib
import re
import shutil
import subprocess

from _engine import ROOT, docker, exists, run, say, skip

HERE = pathlib.Path(__file__).parent
# What the published slim images leave out as well.
LEFT_OUT = ["usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/groff", "usr/share/lintian", "var/lib/apt/lists", "var/cache/apt", "var/cache/debconf", "var/log"]
CLEAN = """\
APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""
DPKG = "".join(f"path-exclude /usr/share/{folder}/*\n" for folder in ("doc", "man", "info", "locale", "groff", "lintian"))


def base_image(file, prefix):
    """Returns the first image name in `file` that begins with `prefix`."""
    return re.search(rf"\b({re.escape(prefix)}[\w./:-]*)", (ROOT / file).read_text()).group(1)


def debian(scratch, name=None):
    """Returns `name`, or else the name of the Debian image of the Dockerfile, and makes a stand-in
    if the engine does not have this image."""
    name = name or base_image("Dockerfile", "debian:")
    if not exists(name):
        say(f"making a stand-in for {name}")
        if not shutil.which("debootstrap"):
            skip(f"there is no image {name}, and no debootstrap to make one")
        suite, tree = name.partition(":")[2].removesuffix("-slim"), scratch / "debian"
        run("debootstrap", "--variant=minbase", suite, tree, mirror(), stderr=subprocess.DEVNULL)
        for folder in LEFT_OUT:
            shutil.rmtree(tree / folder, ignore_errors=True)
            (tree / folder).mkdir(parents=True)
        (tree / "var/lib/apt/lists/partial").mkdir()
        (tree / "var/cache/apt/archives/partial").mkdir(parents=True)
        (tree / "etc/dpkg/dpkg.cfg.d/slim").write_text(DPKG)
        (tree / "etc/apt/apt.conf.d/docker-clean").write_text(CLEAN)
        for source in ("/usr/local/share/ca-certificates", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf"):
            copy(pathlib.Path(source), tree)
        with subprocess.Popen(["tar", "--directory", tree, "--create", "."], stdout=subprocess.PIPE) as packed:
            docker("import", "--change", 'CMD ["bash"]', "-", name, stdin=packed.stdout)
        if packed.returncode:
            docker("rmi", name)
            raise SystemExit(f"containers: the files of {name} cannot be packed")
        shutil.rmtree(tree)
    return name


def mirror():
    """Returns the package source of this machine."""
    for file in [*pathlib.Path("/etc/apt/sources.list.d").glob("*.sources"), pathlib.Path("/etc/apt/sources.list")]:
        found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?) *(\S+)", file.read_text(), re.M) if file.exists() else None
        if found:
            return found.group(1)
    return skip("this machine has no Debian package source")


def copy(source, tree):
    target = tree / source.relative_to("/")
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def rust(scratch, base):
    name = base_image("Dockerfile", "rust:")
    if not exists(name):
        say(f"making a stand-in for {name}")
        toolchain = pathlib.Path(run("rustc", "--print", "sysroot"))
        context = scratch / "rust"
        shutil.copytree(toolchain, context / "toolchain", symlinks=True, ignore=shutil.ignore_patterns("doc", "src", "man"))
        (context / "Dockerfile").write_text(
            f"FROM {base}\n"
            "RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates gcc g++ git libc6-dev make \\\n"
            "    && rm -rf /var/lib/apt/lists/*\n"
            "COPY toolchain /usr/local/rust\n"
            "ENV PATH=/usr/local/cargo/bin:/usr/local/rust/bin:/usr/local/bin:/usr/bin:/bin CARGO_HOME=/usr/local/cargo\n"
        )
        docker("build", "--quiet", "--tag", name, context)
        shutil.rmtree(context)
    return name


def postgres(scratch, base):
    name = base_image("docker-compose.yml", "pgvector/pgvector:")
    if not exists(name):
        say(f"making a stand-in for {name}")
        run(ROOT / "scripts/setup")
        context = scratch / "postgres"
        shutil.copytree(ROOT / ".runtime/postgres", context / "postgres", symlinks=True)
        shutil.copy(HERE / "postgres-entrypoint", context)
        (context / "Dockerfile").write_text(
            f"FROM {base}\n"
            "RUN useradd --system --uid 999 --user-group --no-create-home postgres && mkdir -p /var/lib/postgresql /var/run/postgresql\n"
            "COPY postgres /opt/postgres\n"
            "COPY postgres-entrypoint /usr/local/bin/\n"
            "ENV PATH=/opt/postgres/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PGDATA=/var/lib/postgresql/18/docker\n"
            # As in the published image: without it, Postgres waits for its clients to leave.
            "STOPSIGNAL SIGINT\n"
            'ENTRYPOINT ["postgres-entrypoint"]\n'
            'CMD ["postgres"]\n'
        )
        docker("build", "--quiet", "--tag", name, context)
        shutil.rmtree(context)
    return name


def built(scratch, name, *instructions):
    """Builds an image for the tests from the lines of a Dockerfile, with scripts/s3-packages.txt in
    the context. The builder reuses the layers of an earlier build."""
    say(f"making {name}")
    context = scratch / "tests"
    context.mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts/s3-packages.txt", context)
    (context / "Dockerfile").write_text("\n".join(instructions) + "\n")
    docker("build", "--quiet", "--tag", name, context)
    return name


def install(*packages):
    return f"RUN apt-get update && apt-get install --yes --no-install-recommends {' '.join(packages)} && rm -rf /var/lib/apt/lists/*"


def site(scratch, base):
    """Makes an image that serves the folder /site, for crawls."""
    return built(scratch, "facecrawl-test-site:local", f"FROM {base}", install("python3"), 'CMD ["python3", "-m", "http.server", "--directory", "/site", "8000"]')


def hosts(scratch, base, program):
    """Makes the images of an S3 server, and of the program on a host whose clock is wrong by
    FAKETIME."""
    pip = "RUN python3 -m venv /opt/s3 && /opt/s3/bin/pip install --quiet --no-cache-dir --requirement /s3-packages.txt"
    built(scratch, "facecrawl-test-s3:local", f"FROM {base}", install("ca-certificates", "python3", "python3-venv"), "COPY s3-packages.txt /", pip, 'CMD ["/opt/s3/bin/python", "/s3.py"]')
    clock = "ENV LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 FAKETIME_DONT_FAKE_MONOTONIC=1"
    built(scratch, "facecrawl-test-shifted:local", f"FROM {program}", "USER root", install("libfaketime"), "USER 10001:10001", clock)


def pgbouncer(scratch, base):
    """Makes an image of PgBouncer, which reads its configuration from /etc/pgbouncer."""
    return built(scratch, "facecrawl-test-pgbouncer:local", f"FROM {base}", install("pgbouncer"), "USER postgres", 'CMD ["pgbouncer", "/etc/pgbouncer/pgbouncer.ini"]')


def prometheus(scratch, base):
    """Makes a stand-in for the image of Prometheus from Debian's package, which is an older version."""
    name = base_image("docker-compose.yml", "prom/prometheus:")
    if not exists(name):
        # The published image has the same user and entry point, and wget for the health check.
        owner = "RUN mkdir -p /prometheus && chown nobody:nogroup /prometheus"
        built(scratch, name, f"FROM {base}", install("prometheus", "wget"), owner, "USER nobody", 'ENTRYPOINT ["prometheus"]')
    version = docker("run", "--rm", "--network=none", name, "--version", stderr=subprocess.STDOUT).splitlines()[0]
    say(f"{name}: {version.partition(' (')[0]}")


def make(scratch):
    """Makes every missing base image. Returns the name of the Debian image."""
    base = debian(scratch)
    rust(scratch, base)
    postgres(scratch, base)
    return base
