"""Logs that people already have, as records of a trace."""
