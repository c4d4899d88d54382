"""Going on after a break: what another attempt is asked, where a streamed reply broke off amid its text.

The text that has come is the beginning of what the next attempt is to say. That is done only if the caller wants
it (`CanonicalRequest.continue_broken`), if all that came is text, and if the model takes a beginning. White space
at the end of the text is not sent, as some providers refuse it; see `adapters.replies.continued` for how both
parts join. Half a tool call and half a thought can't be gone on with: the break then is the call's error.
"""

from __future__ import annotations

import msgspec

from callboard.bus.values.messages import Message

from ..contract import CanonicalRequest
from ..usage.estimate import at_most, estimate_tokens
from .wire import ChatWire


def continued(wire: ChatWire, request: CanonicalRequest, said: str | None) -> CanonicalRequest | None:
    """The request for the rest of a reply; None if there is no asking for it.

    Args:
        wire: The provider's protocol.
        request: The request for the whole reply.
        said: The text that has come; None if something else has come as well.
    """
    if said is None or not request.continue_broken or request.output_schema is not None:
        return None
    choice = request.tool_choice
    if (choice is not None and choice.mode in ("required", "named")) or not wire.takes_beginning(request):
        return None
    left = request.max_output_tokens - at_most(estimate_tokens(said, wire.token_rates(request.model)))
    if left < 1:
        return None
    beginning = said.rstrip()
    if not beginning:
        return request
    messages = (*request.messages, Message.assistant(beginning))
    return msgspec.structs.replace(request, messages=messages, max_output_tokens=left, has_beginning=True)
