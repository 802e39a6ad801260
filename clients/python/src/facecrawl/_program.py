"""Finds the program that was installed with this package."""
import os
import pathlib
import sysconfig


def program() -> str:
    """Returns the path of the program. `FACECRAWL_PROGRAM` selects another program, such as one
    that was built from source.

    Raises FileNotFoundError if it is not installed.
    """
    if selected := os.environ.get("FACECRAWL_PROGRAM"):
        return selected
    module = pathlib.Path(__file__).resolve().parent
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")),
        # `pip install --target FOLDER` writes the program to FOLDER/bin.
        str(module.parent / "bin"),
    ]
    candidates = [pathlib.Path(folder, "facecrawl") for folder in folders]
    for candidate in candidates:
        if candidate.is_file():
            return str(candidate)
    places = ", ".join(str(candidate.parent) for candidate in candidates)
    raise FileNotFoundError(f"the program facecrawl is in none of the folders {places}; install the package again with pip")
