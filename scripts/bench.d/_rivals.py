"""Runs the programs for comparison. They are scripts of this project that run in disposable
environments with the packages of the other programs."""
from _build import ROOT
from environments import python  # noqa: F401 (this module's own function)

PEERS = ROOT / "scripts/bench.d/peers"
