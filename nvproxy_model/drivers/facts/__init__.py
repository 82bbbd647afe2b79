"""Recorded facts of driver releases: the shipped file, a user's own beside it, and the one form that both have."""

from nvproxy_model.drivers.facts.encoding import encode
from nvproxy_model.drivers.facts.recorded import AS_OF, FACTS, Facts, load, nearest_names, newest, own_file

__all__ = ["AS_OF", "FACTS", "Facts", "encode", "load", "nearest_names", "newest", "own_file"]
