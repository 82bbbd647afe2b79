"""Recorders: a preloaded library, and seccomp user notification."""
