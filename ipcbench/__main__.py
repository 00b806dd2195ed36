"""`python -m ipcbench`: the command line, for use where its script is not on the path."""

from __future__ import annotations

import sys

from ipcbench.cli import main

sys.exit(main())
