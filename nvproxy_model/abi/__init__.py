"""The tables: rows only. Which of them hold at a release is `nvproxy_model.rules.active`'s to say.

The tables are imported on first use; `escapes` and `windows` are numbers alone, which the readers of logs need as well.
"""

from typing import TYPE_CHECKING

from nvproxy_model.lazy import lazy

__all__ = ["ALLOC", "CONTROL", "FRONTEND", "TABLES", "UNPUBLISHED", "UVM"]

if TYPE_CHECKING:
    from nvproxy_model.abi.alloc import ALLOC
    from nvproxy_model.abi.frontend import FRONTEND
    from nvproxy_model.abi.tables import CONTROL, TABLES, UNPUBLISHED
    from nvproxy_model.abi.uvm import UVM
else:
    __getattr__, __dir__ = lazy(__name__, {"tables": __all__})
