"""`python -m ipcbench`: the command, for where its script is not on the path.

What does not live here: anything else (ipcbench/cli).
"""

from __future__ import annotations

import sys

from ipcbench.cli import main

sys.exit(main())
