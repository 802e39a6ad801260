"""The private Postgres of a running service."""
import sys
import urllib.parse


def url_of(data):
    """Its URL, through the socket beside its data; `data` is the service's DATA_DIR."""
    sockets = data / "postgres.run"
    if not sockets.is_dir():
        sys.exit(f"bench: {sockets} is missing: the path of the scratch folder is too long for a socket, set TMPDIR to a shorter one")
    return f"postgres://postgres@localhost:5432/facecrawl?host={urllib.parse.quote(str(sockets), safe='')}"
