"""Traces of real programs: recorded, read, decoded, checked against a policy, compared and replayed."""
