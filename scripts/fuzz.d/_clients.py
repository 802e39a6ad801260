"""Runs the code blocks of docs/how-to/CLIENTS.md in order against the running service."""
import os
import re
import shutil
import subprocess
import sys

from environments import ROOT

PAGE = ROOT / "docs/how-to/CLIENTS.md"
TOOLS = ROOT / ".runtime/fuzz-node"
PACKAGES = ["typescript@5.9.3", "openapi-typescript@7.13.0", "@types/node@20.19.43"]
OPTIONS = ["--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable,dom.asynciterable", "--types", "node"]


def clients(base, secret, folder, address, pictures):
    """Runs the blocks of both languages, if both are installed. Returns whether all succeeded.
    `pictures` are the image files that the document calls portrait.jpg and team.jpg."""
    folder.mkdir()
    for name, picture in zip(("portrait.jpg", "team.jpg"), pictures):
        shutil.copy(picture, folder / name)
    environment = os.environ | {"FACECRAWL_URL": base}
    if secret:
        environment["FACECRAWL_KEY"] = secret
    programs = {"Python": python, "TypeScript": typescript}
    good = True
    for name, program in programs.items():
        command = program(base, folder, address)
        if command is None:
            print(f"fuzz-api: skipped the {name} of {PAGE.name}: Node 20 with npm or a package is missing", file=sys.stderr)
        elif not runs(command, cwd=folder, env=environment):
            print(f"fuzz-api: the {name} of {PAGE.name} fails", file=sys.stderr)
            good = False
    return good


def runs(command, **options):
    """Runs a command and returns whether it succeeds. Its output is shown only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **options)
    if done.returncode:
        print(done.stdout)
    return done.returncode == 0


def blocks(language, address):
    """Returns the code blocks of a language as one program. The program uses the loopback address
    of the site in place of the host name in the examples."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return "\n".join(found).replace("https://example.org", address)


def python(_, folder, address):
    (folder / "clients.py").write_text(blocks("python", address))
    return [sys.executable, "clients.py"]


def typescript(base, folder, address):
    """Checks the TypeScript code against the types of the OpenAPI document. Returns the command
    that runs the compiled code."""
    version = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout if shutil.which("node") else ""
    if not shutil.which("npm") or not version.startswith("v") or int(version[1:].split(".")[0]) < 20 or not install():
        return None
    (folder / "node_modules").symlink_to(TOOLS / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "clients.ts").write_text(blocks("ts", address))
    binaries = TOOLS / "node_modules/.bin"
    generate = [binaries / "openapi-typescript", f"{base}/openapi.json", "--output", "facecrawl.d.ts"]
    check = [binaries / "tsc", *OPTIONS, "clients.ts"]
    if not all(runs(command, cwd=folder) for command in (generate, check)):
        sys.exit(f"fuzz-api: the types of {PAGE.name} do not match the document")
    return ["node", "clients.js"]


def install():
    """Installs TypeScript if it is missing or has a different version. Returns whether it is
    available."""
    marker, wanted = TOOLS / ".complete", "\n".join(PACKAGES)
    if marker.exists() and marker.read_text() == wanted:
        return True
    print("fuzz-api: fetching TypeScript (once)", file=sys.stderr)
    shutil.rmtree(TOOLS, ignore_errors=True)
    TOOLS.mkdir(parents=True)
    # No lock file is written, because it would contain the address of a registry. The three
    # packages are pinned, and are only used to check and print.
    quick = ["--fetch-retries=1", "--fetch-timeout=30000"]
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", *quick, *PACKAGES]
    if subprocess.run(command, cwd=TOOLS).returncode:
        return False
    marker.write_text(wanted)
    return True
