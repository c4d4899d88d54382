"""Usage of servers that report it only in part: what is missing is estimated, and the usage says that it is."""

from __future__ import annotations

import msgspec

from callboard.bus.values.usage import TokenUsage, UsageSource
from callboard.bus.values.warning_codes import WarningCode

from ..replies.assembler import Assembler
from .estimate import estimate_request, estimate_tokens
from .rates import TokenRates


def fill_usage(
    assembler: Assembler, prompt: int | None, generated: int | None, rates: TokenRates, raw: bytes
) -> TokenUsage | None:
    """The usage of a complete reply whose end is missing; None if nothing of it is known.

    An estimate is reported in the assembler's warnings.

    Args:
        assembler: The assembler of the reply.
        prompt: The reported number of input tokens; None if it is missing.
        generated: The reported number of output tokens; None if it is missing. For a reply without output it then
            counts as zero.
        rates: The rates of estimates.
        raw: The provider's usage as JSON.
    """
    request = assembler.request
    if (prompt is None and generated is None) or (prompt is None and request is None):
        return None
    output = assembler.partial_text()
    known = prompt is not None and (generated is not None or not output)
    if not known:
        assembler.warn(
            WarningCode.USAGE_ESTIMATED,
            f"{assembler.provider} reported only a part of the usage; the rest is an estimate",
        )
    if prompt is None:
        assert request is not None
        prompt = estimate_request(request.messages, request.tools, request.system_prompt, rates)
    return TokenUsage(
        input_tokens=prompt,
        output_tokens=generated if generated is not None else estimate_tokens(output, rates),
        source=UsageSource.REPORTED if known else UsageSource.ESTIMATED,
        raw=msgspec.Raw(raw),
    )
