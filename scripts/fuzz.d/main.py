"""Checks the running service against its OpenAPI document; see `scripts/fuzz-api`."""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import requests

HERE = pathlib.Path(__file__).resolve().parent
# Modules that other scripts share.
sys.path.append(str(HERE.parent / "lib"))
from _clients import clients
from _examples import mistakes
from _seed import Api, seed
from _service import key, service
from _site import site

# Operations that cannot succeed here, with the reason. The tests of the service cover these
# operations.
CANNOT_SUCCEED = {
    "POST /jobs/{id}/retry": "no job is given up within the time of a run",
    "POST /videos/detect": "random bytes are no clip",
    "POST /videos/{id}/pause": "the videos have ended",
    "POST /videos/{id}/resume": "nor can they be resumed",
    "POST /videos/{id}/retry": "nor have they failed",
    "POST /videos/{id}/cancel": "nor be cancelled",
}
CANNOT_SUCCEED_WITHOUT_KEYS = CANNOT_SUCCEED | {
    "POST /keys": "a service that asks nobody for a key lets nobody make one",
    "POST /keys/{id}/revoke": "nor revoke one",
}
# With fewer examples, it depends on chance whether an operation gets one of the few ids that are
# suitable for it. A tenth of all operations may then never succeed.
ENOUGH = 20


def main():
    parser = argparse.ArgumentParser(prog="fuzz-api", description=__doc__)
    parser.add_argument("target", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--auth", choices=["none", "keys", "both"], default="both", help="values of AUTH to test")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random requests; the same seed sends the same requests")
    parser.add_argument("--examples", type=int, default=ENOUGH, help="number of random requests to each operation, in each phase that generates them")
    parser.add_argument("--seconds", type=int, default=600, help="maximum duration; a longer run is a failure")
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    parser.add_argument("--reports", type=pathlib.Path, help="folder for the reports and the service's log; by default they are deleted")
    arguments, further = parser.parse_known_args()
    modes = ["none", "keys"] if arguments.auth == "both" else [arguments.auth]
    failed = [mode for mode in modes if not run(arguments, mode, further)]
    if failed:
        sys.exit(f"fuzz-api: failures with AUTH={' and AUTH='.join(failed)}")


def run(arguments, auth, further):
    with contextlib.ExitStack() as stack:
        # The name of the folder is short, because the private Postgres creates its socket in it and
        # the length of the path of a socket is limited.
        temporary = tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True)
        scratch = arguments.reports.resolve() / auth if arguments.reports else pathlib.Path(stack.enter_context(temporary))
        scratch.mkdir(parents=True, exist_ok=True)
        pictures = draw(arguments.target, scratch / "portraits")
        # The first portraits fill the gallery, schemathesis sends the next three, and the
        # examples in CLIENTS.md use the rest.
        gallery, shown, theirs = pictures[:24], pictures[24:27], pictures[27:]
        address = stack.enter_context(site({"/": gallery, "/shown": shown}))
        example = stack.enter_context(site({"/": theirs[:6], "/team.html": theirs[6:]}))
        running = stack.enter_context(service(arguments.target / "facecrawl", scratch, auth, address))
        own = key(running)
        secret = own["key"] if auth == "keys" else ""
        facts = {
            "base": running.base,
            "own_key": own["id"],
            "ids": seed(Api(running.base, secret), address),
            "pictures": [str(path) for path in shown],
            "urls": [f"{address}/{path.name}" for path in shown],
        }
        (scratch / "facts.json").write_text(json.dumps(facts))
        good = examples_are_true(running.base)
        good &= clients(running.base, secret, scratch / "clients", example, (theirs[0], theirs[1]))
        answers = scratch / "answers.jsonl"
        answers.write_text("")
        ended = schemathesis(arguments, running.base, secret, scratch, further)
        unproven, all_of_them = report(answers, CANNOT_SUCCEED if secret else CANNOT_SUCCEED_WITHOUT_KEYS)
        complete = unproven <= (0 if arguments.examples >= ENOUGH else all_of_them // 10)
        return good and ended == 0 and complete


def examples_are_true(base):
    """Checks the examples before any other request, because schemathesis takes its first cases from
    the examples."""
    found, seen = mistakes(requests.get(f"{base}/openapi.json", timeout=30).json())
    print(f"fuzz-api: {seen} examples, {len(found)} errors", *found, sep="\n    ", file=sys.stderr)
    return not found


def draw(target, folder):
    """Returns portraits of people who do not exist, in a fixed order."""
    subprocess.run([target / "examples/draw", "portraits", folder, "12", "3"], check=True)
    return sorted(folder.glob("*.jpg"), key=lambda path: [int(part) for part in path.stem.split("-")])


def schemathesis(arguments, base, secret, scratch, further):
    environment = os.environ | {
        "FUZZ_FACTS": str(scratch / "facts.json"), "FUZZ_ANSWERS": str(scratch / "answers.jsonl"), "FUZZ_KEY": secret or "none is asked for",
        "PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "hooks",
    }
    command = [
        pathlib.Path(sys.executable).parent / "schemathesis", "--config-file", HERE / "schemathesis.toml", "run", f"{base}/openapi.json",
        "--seed", str(arguments.seed), "--max-examples", str(arguments.examples), "--phases", arguments.phases,
        "--continue-on-failure", "--generation-database", "none",
    ]
    if arguments.reports:
        command += ["--report", "ndjson", "--report-dir", scratch]
    try:
        return subprocess.run([*command, *further], env=environment, cwd=scratch, timeout=arguments.seconds).returncode
    except subprocess.TimeoutExpired:
        print(f"fuzz-api: schemathesis did not finish within {arguments.seconds} seconds", file=sys.stderr)
        return 1


def report(answers, cannot_succeed):
    """Prints how often each operation returned each status. Returns the number of operations that
    can succeed here but never did, and the number of all operations."""
    seen = collections.defaultdict(collections.Counter)
    for line in answers.read_text().splitlines():
        operation, status, code = json.loads(line)
        seen[operation][f"{status} {code}" if code else str(status)] += 1
    for operation in sorted(seen):
        print(operation, dict(seen[operation].most_common()))
    unproven = [one for one in seen if one not in cannot_succeed and not any(answer[0] in "23" for answer in seen[one])]
    if unproven:
        print(f"fuzz-api: never succeeded: {', '.join(unproven)}", file=sys.stderr)
    return len(unproven), len(seen)


if __name__ == "__main__":
    main()
