"""Runs the program: `python -m facecrawl up` is `facecrawl up`."""
import os
import sys

from facecrawl._program import program

if __name__ == "__main__":
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
