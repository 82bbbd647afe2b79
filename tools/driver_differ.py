"""nvproxy-differ."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nvproxy_model.tools.differ import PROGRAM

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return PROGRAM.main(argv)


if __name__ == "__main__":
    sys.exit(main())
