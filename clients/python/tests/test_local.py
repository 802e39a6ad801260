"""Tests of private services, and of the code in the documents."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import time

import pytest
from conftest import ROOT

import facecrawl


# ---- Private services ----


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_local_stops_the_process_and_deletes_its_data():
    local = facecrawl.local()
    with local as client:
        pid, folder = local._process.pid, local._folder
        assert client.base_url == local.url and folder.is_dir()
        assert local.start() is client
    assert not is_alive(pid) and not folder.exists() and local.url == ""
    with pytest.raises(facecrawl.ConnectionFailed):
        facecrawl.Client(client.base_url, retries=0).list_faces()


def test_local_keeps_its_data(tmp_path, monkeypatch):
    for folder in [tmp_path, *tmp_path.parents]:
        # The user that runs Postgres must be able to enter.
        if os.geteuid() == 0 and folder.stat().st_mode & 0o011 != 0o011:
            folder.chmod(folder.stat().st_mode | 0o011)
    # Settings of other services are not inherited.
    monkeypatch.setenv("DATABASE_URL", "postgres://user:password@127.0.0.1:9/production")
    monkeypatch.setenv("AUTH", "keys")
    monkeypatch.setenv("FACECRAWL_ROOT", str(tmp_path))
    data = tmp_path / "kept"
    with facecrawl.local(data=data, settings={"MAX_IMAGE_MB": 1, "ALL_GPU": False}) as client:
        client.create_collection(name="kept")
        with pytest.raises(facecrawl.Problem, match="too_many_bytes"):
            client.detect_faces(b"\xff\xd8" + bytes(2 << 20))
    with facecrawl.local(data=data) as client:
        assert client.get_collection("kept")["name"] == "kept"


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_local_ends_with_the_program(ending):
    code = f"""
import facecrawl, os, signal
local = facecrawl.local()
local.start()
print(local._process.pid, local._folder, flush=True)
{ending}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    pid, folder = done.stdout.split()
    wait_until(lambda: not is_alive(int(pid)) and not pathlib.Path(folder).exists())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"settings": {"WORKER": 2}}, ValueError, "did you mean WORKERS?"),
        ({"settings": {"LOG_FORMAT": "json"}}, ValueError, "cannot be set here"),
        ({"settings": {"WORKERS": "many"}}, facecrawl.StartFailed, "WORKERS=many"),
        ({"program": "/nothing/facecrawl"}, facecrawl.StartFailed, "No such file"),
        ({"program": "/bin/true"}, facecrawl.StartFailed, "not the program of facecrawl"),
        ({"start_timeout": 0}, facecrawl.StartFailed, "did not become ready"),
    ],
)
def test_local_explains_why_it_does_not_start(arguments, error, message):
    local = facecrawl.local(**arguments)
    with pytest.raises(error, match=re.escape(message)):
        local.start()
    assert local._process is None and local._folder is None


# ---- Documents ----


def run(code, site, folder, portraits, url):
    """Runs Python code in a folder with the files that the documents mention."""
    (folder / "portrait.jpg").write_bytes(portraits[0].read_bytes())
    environment = os.environ | {"FACECRAWL_URL": url}
    code = code.replace("https://example.org", site)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_code_of_the_readme_runs(service, site, portraits, tmp_path):
    text = (ROOT / "clients/python/README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    output = run("\n".join(blocks), site, tmp_path, portraits, service.url)
    assert f"{site}/0.jpg" in output and "1 faces" in output


def test_the_example_runs(site, portraits):
    script = ROOT / "clients/python/examples/crawl_and_search.py"
    settings = ["CRAWL_ALLOW_PRIVATE=127.0.0.0/8", "CRAWL_DELAY_MS=0"]
    command = [sys.executable, str(script), f"{site}/", str(portraits[2]), *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"1.00 {site}/2.jpg" in done.stdout
