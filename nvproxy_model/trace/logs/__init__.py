"""Logs that people already have, as records of a trace."""

from typing import Final

__all__ = ["NAMES"]

NAMES: Final = ("ioctl-sniffer", "nvproxy-log", "strace")
"""The kinds of log that `nvproxy_model.trace.logs.kinds` reads, here so that a command line can list them without the readers."""
