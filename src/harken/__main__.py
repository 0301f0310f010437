"""``python -m harken`` is the `harken` command."""

import sys

from harken.cli import main

sys.exit(main())
