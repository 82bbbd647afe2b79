"""What differs: between two releases, between this model and a release, and over all releases."""

from nvproxy_model.drivers.compare.findings import Comparison, Finding, compare_releases

__all__ = ["Comparison", "Finding", "compare_releases"]
