"""What a test of a sandbox needs in place of a GPU: a driver that answers, guest memory, strategies, and the replay of vectors.

Hypothesis strategies are in `nvproxy_model.testing.strategies`, which alone needs hypothesis.
"""

from nvproxy_model.testing.calls import GuestCall, apply
from nvproxy_model.testing.conform import Memory
from nvproxy_model.testing.driver.driver import FakeDriver

__all__ = ["FakeDriver", "GuestCall", "Memory", "apply"]
