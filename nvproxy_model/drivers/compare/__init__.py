"""What differs: between two releases, between this model and a release, and over all releases."""

from typing import TYPE_CHECKING

from nvproxy_model.lazy import lazy

if TYPE_CHECKING:
    from nvproxy_model.drivers.compare.findings import Comparison, Finding, compare_releases
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "findings": (
                "Comparison",
                "Finding",
                "compare_releases",
            ),
        },
    )

__all__ = ["Comparison", "Finding", "compare_releases"]
