"""``python -m rewire``."""

import sys

from rewire.cli import main

sys.exit(main())
