"""``python -m spikewire``."""

import sys

from spikewire.cli import main

sys.exit(main())
