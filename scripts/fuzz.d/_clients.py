"""Runs the code blocks of docs/how-to/CLIENTS.md in order against the running service."""
import os
import re
import shutil
import subprocess
import sys

from environments import ROOT

PAGE = ROOT / "docs/how-to/CLIENTS.md"
TYPESCRIPT = ROOT / "clients/typescript"
OPTIONS = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node"]


def clients(base, secret, folder, address, pictures):
    """Runs the blocks of both languages, if both are installed. Returns whether all succeeded.
    `pictures` are the image files that the document calls portrait.jpg and team.jpg."""
    folder.mkdir()
    for name, picture in zip(("portrait.jpg", "team.jpg"), pictures):
        shutil.copy(picture, folder / name)
    client = {"PYTHONPATH": str(ROOT / "clients/python/src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = os.environ | client | {"FACECRAWL_URL": base}
    if secret:
        environment["FACECRAWL_KEY"] = secret
    programs = {"Python": python, "TypeScript": typescript}
    good = True
    for name, program in programs.items():
        command = program(folder, address)
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


def python(folder, address):
    (folder / "clients.py").write_text(blocks("python", address))
    return [sys.executable, "clients.py"]


def typescript(folder, address):
    """Checks the TypeScript code against the types of the client. Returns the command that runs the
    compiled code, or None if TypeScript is not available."""
    status = subprocess.run([ROOT / "scripts/test-typescript-client", "--build"]).returncode
    if status == 3:
        return None
    if status:
        sys.exit("fuzz-api: the TypeScript client cannot be compiled")
    packages = folder / "node_modules"
    packages.mkdir()
    (packages / "facecrawl").symlink_to(TYPESCRIPT)
    (packages / "@types").symlink_to(TYPESCRIPT / "node_modules/@types")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "clients.ts").write_text(blocks("ts", address))
    if not runs([TYPESCRIPT / "node_modules/.bin/tsc", *OPTIONS, "clients.ts"], cwd=folder):
        sys.exit(f"fuzz-api: the TypeScript of {PAGE.name} does not match the client")
    return ["node", "clients.js"]
