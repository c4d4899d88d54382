"""A host's use of tools, for type checkers. `test_typed_use` checks the file, and it never runs."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, assert_type

from callboard import (
    ApprovalRequest,
    Approved,
    Cost,
    Denied,
    Engine,
    FunctionTool,
    JsonObject,
    Pending,
    Reply,
    StepResult,
    TokenUsage,
    Tool,
    ToolAnnotations,
    ToolContext,
    ToolDefinition,
    ToolError,
    mcp_tools,
    tool,
)
from callboard.bus import TurnStatus


@tool
def plain(city: str, days: int = 1) -> list[str]:
    return [city] * days


@tool(name="other", annotations=ToolAnnotations(read_only=True), timeout=3)
async def asynchronous(city: str, context: ToolContext) -> dict[str, int]:
    context.progress("half", 0.5)
    return {city: 1}


class Library:
    @tool
    def find(self, title: str) -> bool:
        return bool(title)


assert_type(plain("Rome"), list[str])
assert_type(plain("Rome", days=2), list[str])
assert_type(Library().find("Emma"), bool)
made = tool(len, name="length")
assert_type(plain.definition, ToolDefinition)


async def use(engine: Engine, context: ToolContext) -> None:
    assert_type(await asynchronous("Rome", context), dict[str, int])

    def approve(request: ApprovalRequest) -> Approved | Denied | Pending:
        return Approved() if request.definition.annotations else Denied("no")

    async def approve_later(request: ApprovalRequest) -> Pending:
        return Pending()

    def enough(steps: Sequence[StepResult]) -> bool:
        return len(steps) > 3

    passive = Tool(ToolDefinition("ask"))
    given = Tool(ToolDefinition("give"), lambda arguments: arguments)
    session = engine.session("m", tools=[plain, asynchronous, Library().find, passive, given], approve=approve)
    message = await session.send("go", max_tool_rounds=3, stop_when=enough, approve=approve_later)
    assert_type(message, Reply)
    assert_type(message.metadata.cost, Cost)
    assert_type(message.status, TurnStatus)
    assert_type(message.usage, TokenUsage)
    for call in session.pending_calls:
        assert_type(call.input, JsonObject)
        assert_type(await session.submit({call.id: Approved()}), Reply)
        await session.submit({call.id: ToolError("no")}, max_tool_rounds=2)
    async with session.submit_stream({}) as turn:
        assert_type(await turn.message(), Reply)
    async with mcp_tools(["server"], prefix="x_") as tools:
        engine.session("m", tools=tools)
        assert_type(tools[0].original_name, str)


def takes_any(made: FunctionTool[..., Coroutine[Any, Any, object]]) -> None: ...


takes_any(asynchronous)
