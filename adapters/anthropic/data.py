"""What Anthropic's models and servers take and say, as data: it changes monthly, and code must not."""

from __future__ import annotations

from adapters.repair import Refusal, RepairRules

_AT = r"messages\.\d+(?:\.content\.\d+)?(?:\.\w+)?: "

REPAIRS = RepairRules(
    # wire-facts 1.6, and issues of 2025 and 2026 that quote the replies
    signatures=(
        _AT + r"Invalid `?signature`? in `?thinking`? block\b.*",
        _AT + r"Invalid `?data`? in `?redacted_thinking`? block\b.*",
        _AT + r"`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified\..*",
        _AT + r"each thinking block must contain thinking",
        _AT + r"The block is bound to a different conversation\..*",
    ),
    parameters=(
        Refusal(r"`?(?P<name>[a-z_.]+)`? is deprecated (?:for|in) this model\.?"),
        Refusal(r"`?\"?(?P<name>[a-z_.]+)\"?`? is not supported (?:for|on|with|by) this model\b.{0,300}"),
        Refusal(r"(?P<name>[A-Za-z_0-9.]+): Extra inputs are not permitted"),
        Refusal(r"`temperature` and `top_p` cannot both be specified for this model\b.{0,100}", "top_p"),
        Refusal(r"This model does not support effort level '\w+'\..{0,200}", "output_config.effort"),
        Refusal(r"This model does not support the effort parameter\.?", "output_config.effort"),
        Refusal(r"adaptive thinking is not supported on this model\.?", "thinking"),
    ),
    pairs=(
        _AT
        + r"`tool_use` ids were found without `tool_result` blocks immediately after: (?P<ids>[\w, -]+)\. Each .*",
        _AT + r"unexpected `tool_use_id` found in `tool_result` blocks: (?P<ids>[\w-]+)\..*",
    ),
    essential=frozenset(
        {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "output_config.format"}
    ),
    whole=frozenset({"thinking", "metadata"}),
    anywhere=frozenset({"cache_control", "strict", "citations", "caller"}),
)
