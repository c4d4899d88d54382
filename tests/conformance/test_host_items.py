"""Items that ask the host to act, and the host's replies to them, as opaque blocks on OpenAI's wires."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.requests.history_target import WireCall
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import OpaqueBlock, ProviderRaw, TextBlock, ToolUseBlock
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason

from ..support.fake_http import ask
from ..support.judges import chat_faults, responses_faults
from ..support.wires import WIRES
from ..support.wires import responses as r
from ..support.wires.reading import Reading, read_pieces, read_whole

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

MODEL = "gpt-6-sol"


def item(kind: str, **fields: object) -> JsonObject:
    return {"type": kind, **fields}  # type: ignore[dict-item]


CLICK = item(
    "computer_call", id="cu_1", call_id="call_1", status="completed", pending_safety_checks=[{"id": "sc_1"}],
    actions=[{"type": "click", "x": 1, "y": 2, "button": "left"}],
)  # fmt: skip
SHOT = item(
    "computer_call_output", call_id="call_1", acknowledged_safety_checks=[{"id": "sc_1"}],
    output={"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0KGgo="},
)  # fmt: skip
MAY_I = item("mcp_approval_request", id="mcpr_1", name="pay", server_label="shop", arguments="{}")
YOU_MAY = item("mcp_approval_response", approval_request_id="mcpr_1", approve=True)
SHELL = item(
    "shell_call", id="sh_1", call_id="call_2", status="completed",
    action={"commands": ["ls"], "timeout_ms": 9, "max_output_length": 9},
)  # fmt: skip
LISTED = item(
    "shell_call_output", call_id="call_2",
    output=[{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
)  # fmt: skip
LOCAL = item(
    "local_shell_call", id="lsh_1", call_id="call_3", status="completed",
    action={"type": "exec", "command": ["ls"], "env": {}},
)  # fmt: skip
LOCAL_DONE = item("local_shell_call_output", id="call_3", output="a")
PATCH = item(
    "apply_patch_call", id="apc_1", call_id="call_4", status="completed",
    operation={"type": "delete_file", "path": "a.txt"},
)  # fmt: skip
PATCHED = item("apply_patch_call_output", call_id="call_4", status="completed")
FIND = item("tool_search_call", id="ts_1", call_id="call_5", status="completed", execution="client", arguments={})
FOUND = item("tool_search_output", call_id="call_5", tools=[], execution="client", status="completed")
PAIRS = {
    "computer": (CLICK, SHOT),
    "MCP approval": (MAY_I, YOU_MAY),
    "shell": (SHELL, LISTED),
    "local shell": (LOCAL, LOCAL_DONE),
    "patch": (PATCH, PATCHED),
    "tool search": (FIND, FOUND),
}
each_pair = pytest.mark.parametrize(("call", "answer"), PAIRS.values(), ids=list(PAIRS))


def opaque(data: JsonObject, provider: str = "openai", model: str | None = None) -> OpaqueBlock:
    return OpaqueBlock(str(data["type"]), ProviderRaw(provider, data, model))


def written(adapter: HttpAdapter, *messages: Message, model: str = MODEL) -> tuple[WireCall, JsonObject]:
    call = adapter.write_request(ask(*messages, model=f"{adapter.name}:{model}"), stream=False)
    return call, msgspec.json.decode(call.body)


def dropped(call: WireCall) -> list[str]:
    return [warning.message for warning in call.warnings if warning.code == "content_dropped"]


@each_pair
def test_a_call_is_reported_and_sent_back_with_the_host_s_reply(call: JsonObject, answer: JsonObject) -> None:
    """The items are unchanged, in their places, and valid."""
    reading = read_whole(WIRES[1], r.response(output=[call]), model=f"openai:{MODEL}")
    assert reading.reply.stop_reason is StopReason.TOOL_USE
    assert reading.kept == [call]
    wire, body = written(
        OpenAIAdapter(AdapterConfig()),
        Message.user("Go"),
        Message.assistant(reading.content),
        Message.user([opaque(answer), TextBlock("Go on")]),
    )
    assert body["input"] == [
        {"role": "user", "content": "Go"}, call, answer, {"role": "user", "content": "Go on"},
    ]  # fmt: skip
    assert dropped(wire) == []
    assert responses_faults(body) == []


@each_pair
def test_neither_half_goes_back_without_the_other(call: JsonObject, answer: JsonObject) -> None:
    """After a swap, the call is bound to the first model's reasoning, so it is dropped with its reply."""
    for history, kinds in (
        ((Message.user("Go"), Message.assistant([opaque(call)]), Message.user("Never mind")), ["user", "user"]),
        ((Message.user([TextBlock("Go"), opaque(answer)]),), ["user"]),
    ):
        lost, items = sent_by(MODEL, *history)
        assert [item.get("role") for item in items] == kinds
        assert len(lost) == 1
    history = (
        Message.user("Go"),
        Message.assistant([opaque(call, model=MODEL), TextBlock("So.")]),
        Message.user([opaque(answer), TextBlock("Go on")]),
    )
    lost, items = sent_by("gpt-5.2", *history)
    assert len(lost) == 2
    assert [item.get("type", item.get("role")) for item in items] == ["user", "message", "user"]
    lost, items = sent_by(MODEL, *history)
    assert lost == []
    assert answer in items


def test_a_part_of_a_users_message_that_we_have_no_name_for_goes_as_it_is() -> None:
    file = item("input_file", file_id="file_1")
    _, body = written(OpenAIAdapter(AdapterConfig()), Message.user([TextBlock("Read"), opaque(file)]))
    assert body["input"] == [{"role": "user", "content": [{"type": "input_text", "text": "Read"}, file]}]
    assert responses_faults(body) == []
    stored = item("file", file={"file_id": "file_1"})
    _, body = written(
        OpenAICompatibleAdapter(AdapterConfig()),
        Message.user([TextBlock("Read"), opaque(stored, "openai_compatible")]),
    )
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Read"}, stored]}]
    assert chat_faults(body) == []


def sent_by(model: str, *messages: Message) -> tuple[list[str], list[JsonObject]]:
    """The number of losses and the sent items of a request to a model."""
    wire, body = written(OpenAIAdapter(AdapterConfig()), *messages, model=model)
    assert responses_faults(body) == []
    return dropped(wire), body["input"]


PROGRAM = item("program", id="prog_1", call_id="call_p", code="look()", fingerprint="f")
PROGRAMS_END = item("program_output", id="po_1", call_id="call_p", result="3", status="completed")
CALLER: JsonObject = {"type": "program", "caller_id": "call_p"}
CALLED = r.call("look", "{}", caller=CALLER)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_calls_and_the_end_of_a_program_are_sent_back(streamed: bool) -> None:
    """The result of such a call also has its caller. Another model gets no program and no caller. The end is
    dropped without its program, because the host may cut the history between them.
    """
    begun, over = (
        _read(streamed, *output).content for output in ((PROGRAM, CALLED), (PROGRAMS_END, r.message("3")))
    )
    [call] = [block for block in begun if isinstance(block, ToolUseBlock)]
    history = (
        Message.user("Go"), Message.assistant(begun), Message.tool_result(call.id, "3"), Message.assistant(over),
        Message.user("Thanks"),
    )  # fmt: skip
    lost, items = sent_by(MODEL, *history)
    assert lost == []
    assert [item.get("type") for item in items[1:5]] == [
        "program", "function_call", "function_call_output", "program_output",
    ]  # fmt: skip
    assert (items[1], items[4]) == (PROGRAM, PROGRAMS_END)
    assert [item["caller"] for item in items[2:4]] == [CALLER, CALLER]
    lost, items = sent_by("gpt-5.2", *history)
    assert len(lost) == 2
    assert [item for item in items if "caller" in item] == []
    lost, items = sent_by(MODEL, Message.user("Go"), Message.assistant([opaque(PROGRAMS_END), TextBlock("3")]))
    assert (len(lost), [item.get("type") for item in items]) == (1, [None, "message"])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "call", [r.call("look", "{}"), item("custom_tool_call", call_id="c", name="look", input="x")]
)
def test_further_fields_of_a_call_are_sent_back(call: JsonObject, streamed: bool) -> None:
    """The fields are `async`, the namespace of the tool, and the caller."""
    said: JsonObject = {"async": True, "namespace": "shop", "caller": {"type": "direct"}}
    [block] = _read(streamed, {**call, **said}).content
    _, items = sent_by(MODEL, Message.user("Go"), Message.assistant([block]))
    assert {name: items[1][name] for name in said} == said


def _read(streamed: bool, *output: JsonObject) -> Reading:
    if not streamed:
        return read_whole(WIRES[1], r.response(output=list(output)), model=f"openai:{MODEL}")
    events = [event for n, one in enumerate(output) for event in (r.added(n, one), r.done(n, one))]
    return read_pieces(WIRES[1], [WIRES[1].stream(r.CREATED, *events, r.ending())], model=f"openai:{MODEL}")
