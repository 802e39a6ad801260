"""What the benchmarks share: building, running programs and services, rounds, and the report."""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import urllib.parse

# Modules that other scripts share.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from environments import ROOT, python  # noqa: F401 (used by the benchmarks)
from service import running

PEERS = ROOT / "scripts/bench.d/peers"
MODELS = ROOT / ("../shared/models" if (ROOT / "../shared/models").is_dir() else "models")


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def parse(name, benchmark, arguments):
    """Parses the options of a benchmark, `benchmark.options`: name -> (default, help)."""
    parser = argparse.ArgumentParser(f"bench {name}", description=benchmark.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, (default, text) in benchmark.options.items():
        of = {"nargs": "+", "type": type(default[0])} if isinstance(default, list) else {"type": type(default)}
        parser.add_argument(f"--{option}", default=default, help=f"{text} [default: {default}]", **of)
    found = parser.parse_args(arguments)
    for option, value in vars(found).items():
        if isinstance(value, pathlib.Path) and not value.is_dir():
            parser.error(f"--{option}: {value} is not a folder")
        if isinstance(value, pathlib.Path):
            setattr(found, option, value.resolve())
    return found


def environment(**settings):
    """Returns the environment of a program of this project: this checkout as its root, `settings`,
    and never the user's own database."""
    own = dict(os.environ, FACECRAWL_ROOT=str(ROOT), **{name: str(value) for name, value in settings.items()})
    own.pop("DATABASE_URL", None)
    return own


def release():
    """Builds everything that is measured, and returns the folder with the binary. The examples are in
    its subfolder `examples`. If BENCH_RELEASE is set, returns that folder and builds nothing."""
    for name in (".env", "facecrawl.toml"):
        if (ROOT / name).exists():
            say(f"the {name} of this checkout applies to what is measured")
    if "BENCH_RELEASE" in os.environ:
        return pathlib.Path(os.environ["BENCH_RELEASE"]).resolve()
    say("building (the first build takes some minutes)")
    # In separate builds, the dependencies would have other features and would be compiled again.
    packages = ["facecrawl", "facecrawl-bench", "facecrawl-testing"]
    targets = ["--bin", "facecrawl", "--example", "measure", "--example", "draw"]
    command = ["cargo", "build", "--release", "--locked", "--quiet", *targets]
    subprocess.run([*command, *(f"--package={package}" for package in packages)], check=True, cwd=ROOT)
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"


def printed_json(command, status, printed):
    """Returns the JSON object in the output of a command that has ended. A failure of the command
    ends the measurement."""
    if status != 0:
        sys.exit(f"bench: {' '.join(command)} failed with {status}:\n{printed}")
    return json.loads(printed[printed.index("{"):])


def last_json(command, **options):
    """Runs a command, and returns the JSON object that it prints."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    return printed_json(command, done.returncode, done.stdout)


def measure(folder, *arguments, **options):
    return last_json([folder / "examples/measure", *arguments], **options)


def draw(folder, *arguments):
    subprocess.run([str(part) for part in (folder / "examples/draw", *arguments)], check=True, stdout=subprocess.DEVNULL, env=environment())


@contextlib.contextmanager
def scratch():
    """Yields a folder that is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="facecrawl-bench-", ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


@contextlib.contextmanager
def serving(folder, pictures):
    """Yields the address of a website with the images of a folder, and its process, which prints a
    line on standard error for each request of the index."""
    command = [folder / "examples/measure", "serve-folder", pictures]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["url"], process
        finally:
            process.terminate()


def service(folder, data, **settings):
    """Returns a `Service` for a `with` block. Its data is in a separate folder, and its log beside
    it."""
    return running(folder / "facecrawl", environment(DATA_DIR=data, PORT="0", LOG_LEVEL="warn", **settings), data.parent)


def compact(models, folder):
    """Returns settings for the compact pack, with files copied from `models` to a separate folder."""
    return {"MODELS_DIR": folder / "models", "FACE_MODEL_MIRROR": models.resolve(), "MODEL_PACK": "compact"}


def measurement(name, arguments):
    """Runs a measurement of the example `measure` on the private Postgres of a service with its usual
    settings."""
    folder = release()
    if {"-h", "--help"} & set(arguments):
        sys.exit(subprocess.run([folder / "examples/measure", name, "--help"]).returncode)
    with scratch() as place, service(folder, place / "data", **compact(MODELS, place)):
        # Postgres is reached through the socket next to its data.
        sockets = place / "data/postgres.run"
        if not sockets.is_dir():
            sys.exit(f"bench: {sockets} does not exist, because its path is too long for a socket; set TMPDIR to a shorter path")
        url = f"postgres://postgres@localhost:5432/facecrawl?host={urllib.parse.quote(str(sockets), safe='')}"
        return measure(folder, name, *arguments, env=environment(TEST_DATABASE_URL=url))


def resident_mb(pid):
    """Returns the resident memory of the process alone, without the private Postgres."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0.0)


def rounds(contestants, number):
    """Runs every program (name -> function) once per round. The order changes, so that no program
    always runs after the same other program."""
    names = list(contestants)
    results = {name: [] for name in names}
    for turn in range(number):
        for name in names if turn % 2 == 0 else names[::-1]:
            result = contestants[name]()
            results[name].append(result)
            said = {key: value for key, value in result.items() if isinstance(value, (int, float, str))}
            say(f"round {turn + 1}, {name}: {said}")
    return results


def medians(results, figures):
    """Returns name -> figure -> median over the rounds."""
    return {
        name: {figure: round(statistics.median(one[figure] for one in samples), 3) for figure in figures if figure in samples[0]}
        for name, samples in results.items()
    }


def ratios(results, figure, pairs):
    """Returns for each pair of names the median of the ratios within each round, and all of them.
    Other load on the machine affects both sides of a ratio."""
    found = {}
    for ours, theirs in pairs:
        each = [mine[figure] / other[figure] for mine, other in zip(results[ours], results[theirs])]
        found[f"{ours} / {theirs}"] = {"median": round(statistics.median(each), 2), "rounds": [round(one, 2) for one in each]}
    return found


def report(document):
    """Prints the report, and its medians and ratios as tables."""
    for key, table in document.items():
        if key == "medians" or key.endswith("ratios"):
            say(key)
            for name, figures in table.items():
                say(f"  {name:34}" + "  ".join(f"{figure} {value}" for figure, value in figures.items()))
    print(json.dumps(document, indent=2))
