"""``python -m nvproxy_model.tools.policy``."""

import sys

from nvproxy_model.tools.policy import main

sys.exit(main())
