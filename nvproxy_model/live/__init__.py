"""Watching a running program through the kernel."""
