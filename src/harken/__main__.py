"""Entry point of ``python -m harken``, the `harken` command."""

import sys

from harken.cli import main

sys.exit(main())
