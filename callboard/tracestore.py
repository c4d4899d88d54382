"""What happened, and what it cost: `tracestore` by the name that it has where Callboard is installed.

In a checkout this file tells type checkers what stands there; what runs is `tracestore` itself, see `_rooms`.
"""

from tracestore import *
from tracestore import __all__ as __all__
