"""What is measured against: the project's own scripts, in throw-away environments with the rivals' packages."""
from _build import ROOT
from environments import python  # noqa: F401 (this module's own function)

PEERS = ROOT / "scripts/bench.d/peers"
