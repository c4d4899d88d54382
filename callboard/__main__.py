"""`python -m callboard`: the command, where it is not on the path."""

from __future__ import annotations

import sys

from callboard.engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
