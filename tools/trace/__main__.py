"""``python -m nvproxy_model.tools.trace``."""

import sys

from nvproxy_model.tools.trace import main

sys.exit(main())
