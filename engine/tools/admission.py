"""The steps before a call is run: its tool is found, its arguments are read, and perhaps somebody approves it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from callboard.adapters import ToolUseBlock
from callboard.bus.log import Log
from callboard.bus.values.json import JsonObject

from .approval import ApprovalRequest, Approved, Denied, Pending, denial
from .function.handler import Handler, Ready
from .function.parameters import is_async
from .function.threads import run_in_thread
from .function.tool import Tool
from .repair import InvalidToolCallError
from .rounds import ToolRoundContext

_log = Log("engine.tools")

T = TypeVar("T")

MAX_NAMES = 30
"""The number of tools that are named to a model that called an unknown tool."""


class Refused(Exception):
    """The call is not run. The text is for the model."""


class Waits(Exception):
    """The call is left open."""


async def admit(call: ToolUseBlock, tool: Tool | None, tools: dict[str, Tool], shared: ToolRoundContext) -> Ready:
    """The arguments of a call that may run, checked and converted.

    Raises:
        Refused: The call is not run.
        Waits: The call is left open.
    """
    if tool is None:
        names = ", ".join(list(tools)[:MAX_NAMES])
        raise Refused(f"There is no tool named {call.name!r}. " + (f"The tools are: {names}." if names else ""))
    if call.incomplete and (shared.cut_off or call.raw_arguments is None):
        raise Refused("The call's arguments are incomplete; it was not executed.")
    if tool.handler is None:
        if call.incomplete:
            raise Refused(f"{_fault(call)}; call the tool again.")
        raise Waits
    arguments, ready = await _readied(call, tool, tool.handler, shared)
    if call.id not in shared.approved:
        await _require_approval(call, tool, arguments, shared)
    return ready


async def _readied(
    call: ToolUseBlock, tool: Tool, handler: Handler, shared: ToolRoundContext
) -> tuple[JsonObject, Ready]:
    """The arguments as JSON and converted, after a repair if need be.

    Raises:
        Refused: The arguments don't fit.
    """
    try:
        return call.input, _read(call, handler)
    except InvalidToolCallError as error:
        repaired = await _repaired(call, tool, error, shared)
        if repaired is None:
            raise Refused(f"{error}; call the tool again with arguments that follow its schema.") from error
    mended = msgspec.structs.replace(call, input=repaired, raw_arguments=None, incomplete=False)
    try:
        return repaired, _read(mended, handler)
    except InvalidToolCallError as error:
        raise Refused(f"{error}; call the tool again with arguments that follow its schema.") from error


def _read(call: ToolUseBlock, handler: Handler) -> Ready:
    if call.incomplete:
        raise InvalidToolCallError(_fault(call))
    try:
        return handler.read(call.input)
    except ValueError as error:
        raise InvalidToolCallError(f"The arguments of {call.name!r} are wrong: {error}") from error
    except Exception as error:  # the tool's own schema is wrong, or its type
        raise Refused(f"The tool can't be called: {error}") from error


def _fault(call: ToolUseBlock) -> str:
    return f"The arguments of {call.name!r} are no JSON object"


async def _repaired(
    call: ToolUseBlock, tool: Tool, error: InvalidToolCallError, shared: ToolRoundContext
) -> JsonObject | None:
    if shared.repair is None:
        return None
    try:
        return await _asked(shared.repair, call, error, tool)
    except Exception as failure:
        _log.warning("repair_failed", failure, tool=call.name, error=type(failure).__name__)
        return None


async def _require_approval(
    call: ToolUseBlock, tool: Tool, arguments: JsonObject, shared: ToolRoundContext
) -> None:
    """Return if the call may run.

    Raises:
        Refused: The call is not approved.
        Waits: Nobody has decided yet.
    """
    if tool.needs_approval is False or (tool.needs_approval is None and shared.approve is None):
        return
    request = ApprovalRequest(
        call=call,
        definition=tool.definition,
        arguments=arguments,
        messages=shared.messages,
        session_id=shared.session_id,
        turn_id=shared.turn_id,
    )
    async with shared.asking:  # whoever is asked, perhaps a person at a terminal, is asked one thing at a time
        try:
            approval = await _approval(request, tool, shared)
        except Exception as error:
            _log.warning("approval_failed", error, tool=call.name, error=type(error).__name__)
            raise Refused("The call was not executed: asking for its approval failed.") from error
    match approval:
        case Approved():
            return
        case Denied(reason=reason):
            raise Refused(denial(reason))
        case Pending():
            raise Waits
        case _:
            _log.error(
                "no_approval", tool=call.name, given=repr(approval), expected="Approved(), Denied() or Pending()"
            )
            raise Refused("The call was not executed: it was neither approved nor denied.")


async def _approval(request: ApprovalRequest, tool: Tool, shared: ToolRoundContext) -> object:
    needed = tool.needs_approval
    if callable(needed) and not await _asked(needed, request):
        return Approved()
    return Pending() if shared.approve is None else await _asked(shared.approve, request)


async def _asked(hook: Callable[..., T | Awaitable[T]], *arguments: object) -> T:
    """The answer of a host's hook. A plain function runs in a thread, because it may wait for somebody."""
    answer = hook(*arguments) if is_async(hook) else await run_in_thread(lambda: hook(*arguments))
    return await answer if inspect.isawaitable(answer) else answer
