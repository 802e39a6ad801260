"""The client of facecrawl, a service that finds faces in images, videos and web pages.

`Client` and `AsyncClient` have a method for each operation of the service. `local` runs a private
service. `types` contains the types of all responses.
"""
from facecrawl import types
from facecrawl._client import AsyncClient, Client
from facecrawl._errors import ConnectionFailed, Error, Problem, StartFailed
from facecrawl._images import Image, Upload
from facecrawl._local import LocalService, local
from facecrawl._requests import UNSET
from facecrawl._streams import AsyncStream, Event, Stream

__all__ = [
    "UNSET",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ConnectionFailed",
    "Error",
    "Event",
    "Image",
    "LocalService",
    "Problem",
    "StartFailed",
    "Stream",
    "Upload",
    "local",
    "types",
]
