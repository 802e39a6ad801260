"""The types of requests and responses, for annotations."""
from facecrawl._types import *  # noqa: F403
