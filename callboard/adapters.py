"""Provider facts: `adapters` by the name that it has where Callboard is installed.

In a checkout this file tells type checkers what stands there; what runs is `adapters` itself, see `_rooms`.
"""

from adapters import *
from adapters import __all__ as __all__
