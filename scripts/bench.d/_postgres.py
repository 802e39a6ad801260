"""The private Postgres of a running service."""
import contextlib
import pathlib
import sys
import tempfile
import urllib.parse

from _service import compact, service


@contextlib.contextmanager
def private_postgres(release, models):
    """Yields the URL of the private Postgres of a service that runs on an empty folder with its
    usual settings."""
    with tempfile.TemporaryDirectory(prefix="facecrawl-bench-", ignore_cleanup_errors=True) as scratch:
        scratch = pathlib.Path(scratch)
        with service(release, scratch / "data", **compact(models, scratch)):
            yield url_of(scratch / "data")


def url_of(data):
    """Returns the URL of the private Postgres, which is reached through the socket next to its
    data. `data` is the DATA_DIR of the service."""
    sockets = data / "postgres.run"
    if not sockets.is_dir():
        sys.exit(f"bench: {sockets} does not exist, because the path of the scratch folder is too long for a socket; set TMPDIR to a shorter path")
    return f"postgres://postgres@localhost:5432/facecrawl?host={urllib.parse.quote(str(sockets), safe='')}"
