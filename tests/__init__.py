"""The tests, in the shape of what they test; helpers are imported as ``tests.<folder>.<helper>``."""

from pathlib import Path
from typing import Final

__all__ = ["DATA", "ROOT", "TRACES"]

ROOT: Final = Path(__file__).resolve().parent.parent
DATA: Final = ROOT / "tests" / "data"
TRACES: Final = DATA / "traces"
