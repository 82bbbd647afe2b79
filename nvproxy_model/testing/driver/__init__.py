"""A driver without a GPU: the resource manager's answers, its resource list, and event buffers."""

from nvproxy_model.testing.driver.driver import FakeDriver

__all__ = ["FakeDriver"]
