"""A canonical history as one target gets it: `fit_history`, with all that it says and needs."""

from ..fitted import FittedHistory as FittedHistory
from ..fitted import Loss as Loss
from ..fitted import Target as Target
from ..fitted import ToolIdRule as ToolIdRule
from .fitting import BEGINNING as BEGINNING
from .fitting import FAILED_SILENTLY as FAILED_SILENTLY
from .fitting import MADE_BY_MODEL as MADE_BY_MODEL
from .fitting import NO_OUTPUT as NO_OUTPUT
from .fitting import OPTIONS as OPTIONS
from .fitting import fit_history as fit_history
from .tool_calls import NO_RESULT as NO_RESULT
from .tool_calls import NOT_EXECUTED as NOT_EXECUTED
