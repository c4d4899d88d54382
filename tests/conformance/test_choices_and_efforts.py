"""Which tool a model is to call, and how hard it is to think, in the words of each wire."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning, ToolChoice, ToolDefinition

from ..support.fake_http import FakeTransport, request
from ..support.virtual_time import FakeClock
from ..support.wires import WIRES, ChatWire, Wire

CLAUDE, RESPONSES, CHAT, GEMINI, OLLAMA, *_ = WIRES
LOOK = ToolDefinition("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})
AUTO, NONE, REQUIRED = ToolChoice("auto"), ToolChoice("none"), ToolChoice("required")
NAMED = ToolChoice("named", "look")
ALONE = {"parallel_tool_calls": False}


def written(wire: Wire, model: str = "m", **changes: object) -> tuple[JsonObject, tuple[CallWarning, ...]]:
    """The body of a request to a model, and its warnings."""
    adapter = wire.make(FakeTransport(), FakeClock())
    assert isinstance(adapter, HttpAdapter)
    call = adapter.write_request(request(model=f"{wire.name}:{model}", **changes), stream=False)
    return msgspec.json.decode(call.body), call.warnings


def at(body: JsonObject, path: str) -> Json:
    """What stands at a path of keys; None where it ends."""
    value: Json = body
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


GOOGLE = "toolConfig.functionCallingConfig"
CHOICES: list[tuple[Wire, str, dict[str, object], Json]] = [
    *[(CLAUDE, "tool_choice", {"tool_choice": choice, **more}, expected) for choice, more, expected in [
        (None, {}, None),
        (None, {"parallel_tool_calls": True}, None),
        (None, ALONE, {"type": "auto", "disable_parallel_tool_use": True}),
        (AUTO, {}, {"type": "auto"}),
        (NONE, ALONE, {"type": "none"}),
        (REQUIRED, {"parallel_tool_calls": True}, {"type": "any"}),
        (REQUIRED, ALONE, {"type": "any", "disable_parallel_tool_use": True}),
        (NAMED, {}, {"type": "tool", "name": "look"}),
        (NAMED, ALONE, {"type": "tool", "name": "look", "disable_parallel_tool_use": True}),
    ]],
    *[(wire, "tool_choice", {"tool_choice": choice}, expected) for wire, named in [
        (RESPONSES, {"type": "function", "name": "look"}),
        (CHAT, {"type": "function", "function": {"name": "look"}}),
    ] for choice, expected in [(None, None), (AUTO, "auto"), (NONE, "none"), (REQUIRED, "required"), (NAMED,
    named)]],
    *[(wire, "parallel_tool_calls", ALONE, False) for wire in (RESPONSES, CHAT)],
    (ChatWire("mistral"), "tool_choice", {"tool_choice": REQUIRED}, "any"),
    *[(GEMINI, GOOGLE, {"tool_choice": choice}, expected) for choice, expected in [
        (None, None), (AUTO, {"mode": "AUTO"}), (NONE, {"mode": "NONE"}), (REQUIRED, {"mode": "ANY"}),
        (NAMED, {"mode": "ANY", "allowedFunctionNames": ["look"]})]],
    (ChatWire("default"), "tools", {}, [{"type": "function", "function": {
        "name": "look", "description": "Look.", "parameters": LOOK.input_schema}}]),
    (OLLAMA, "tools", {"tool_choice": NONE}, None),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "path", "asked", "expected"), CHOICES,
                         ids=[f"{row[0].name}-{number}" for number, row in enumerate(CHOICES)])  # fmt: skip
def test_a_tool_choice_in_all_its_modes(wire: Wire, path: str, asked: dict[str, object], expected: Json) -> None:
    """And whether several may be called at once; nothing is sent where nothing is chosen."""
    assert at(written(wire, tools=(LOOK,), **asked)[0], path) == expected


@pytest.mark.parametrize("wire", WIRES[:5], ids=lambda wire: wire.name)
def test_a_choice_that_cannot_be_made(wire: Wire) -> None:
    """One that changes nothing is not sent; one that can't be honoured is an error before the network."""
    for choice in (AUTO, NONE):
        assert not {"tool_choice", "toolConfig"} & written(wire, tool_choice=choice)[0].keys()
    for choice, tools in ((REQUIRED, ()), (NAMED, ()), (ToolChoice("named", "x"), (LOOK,))):
        with pytest.raises(InvalidRequestError):
            written(wire, tool_choice=choice, tools=tools)


def google(**thinking: Json) -> JsonObject:
    return {**thinking, "includeThoughts": True}


CLAUDES = "output_config.effort"
THINKING = "generationConfig.thinkingConfig"
SIX = "gpt-5.6"
EFFORTS: list[tuple[Wire, str, str, str, Json]] = [
    *[(CLAUDE, "claude-test", CLAUDES, asked, sent) for asked, sent in [
        ("none", "low"), ("minimal", "low"), *[(same, same) for same in ("low", "medium", "high", "xhigh",
        "max")]]],
    *[(RESPONSES, model, "reasoning", asked, {"effort": sent, "summary": "auto"}) for model, asked, sent in [
        ("gpt-5", "none", "minimal"), (SIX, "max", "max"), ("o3", "xhigh", "high")]],
    (RESPONSES, "unknown", "reasoning", "max", {"effort": "max"}), (RESPONSES, "gpt-4o", "reasoning", "low", None),
    *[(ChatWire(quirks), "m", path, asked, sent) for quirks, path, asked, sent in [
        ("openai", "reasoning_effort", "minimal", "minimal"), ("xai", "reasoning_effort", "max", "high"),
        ("openrouter", "reasoning", "low", {"effort": "low"}), ("zai", "thinking", "none", {"type": "disabled"}),
        ("deepseek", "thinking", "high", {"type": "enabled"})]],
    *[(GEMINI, f"gemini-{model}", THINKING, asked, sent) for model, asked, sent in [
        ("2.5-flash", "none", {"thinkingBudget": 0}),
        ("2.5-flash", "low", google(thinkingBudget=1024)),
        ("2.5-flash", "max", google(thinkingBudget=24576)),
        ("2.5-flash-lite-preview-06-17", "minimal", google(thinkingBudget=512)),
        ("2.5-pro", "none", google(thinkingBudget=128)),
        ("2.5-pro", "max", google(thinkingBudget=32768)),
        ("3-flash-preview", "minimal", google(thinkingLevel="MINIMAL")),
        ("3-pro-preview", "medium", google(thinkingLevel="LOW")),
        ("3.1-pro-preview", "medium", google(thinkingLevel="MEDIUM")),
        ("3.8-flash", "minimal", google(thinkingLevel="LOW")),
        ("flash-latest", "high", google(thinkingLevel="HIGH")),
        ("unheard-of", "xhigh", google(thinkingLevel="HIGH")),
        ("2.0-flash", "high", None)]],
    (OLLAMA, "m", "think", "high", True), (OLLAMA, "m", "think", "none", False),
    (OLLAMA, "gpt-oss:20b", "think", "high", "high"), (OLLAMA, "gpt-oss:20b", "think", "xhigh", "high"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "model", "path", "effort", "expected"), EFFORTS,
                         ids=[f"{row[0].name}-{row[1]}-{row[3]}" for row in EFFORTS])  # fmt: skip
def test_an_effort_is_the_nearest_that_the_model_has(
    wire: Wire, model: str, path: str, effort: str, expected: Json
) -> None:
    """A change is told, and so is what is left out."""
    body, warnings = written(wire, model, reasoning_effort=effort)
    assert at(body, path) == expected
    level = str(expected).lower()
    same = effort in level or "budget" in level or isinstance(expected, bool) or "type" in level
    codes = [warning.code for warning in warnings]
    if expected is None:
        assert codes == ["parameter_dropped"]
    elif (model, effort) == ("gemini-2.5-pro", "none"):
        assert codes == ["parameter_changed"]
    else:
        assert codes == ([] if same else ["parameter_changed"])
