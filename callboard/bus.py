"""What is said, and how it is carried: `bus` by the name that it has where Callboard is installed.

In a checkout this file tells type checkers what stands there; what runs is `bus` itself, see `_rooms`.
"""

from bus import *
from bus import __all__ as __all__
