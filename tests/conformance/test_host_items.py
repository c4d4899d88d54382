"""Items that ask the host to act, and the host's replies to them, as opaque blocks on OpenAI's wires."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest

from callboard.adapters import create_adapter
from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.requests.history_target import WireCall
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolDefinition
from callboard.bus.values.usage import StopReason

from ..support.fake_http import ask
from ..support.judges import chat_faults, responses_faults
from ..support.wires import WIRES, Wire
from ..support.wires import gemini as g
from ..support.wires import responses as r
from ..support.wires.reading import Reading, read, read_pieces, read_whole

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
    adapter = OpenAIAdapter(AdapterConfig())
    wire, body = written(
        adapter, Message.user("Go"), Message.assistant([opaque(call)]), Message.user("Never mind")
    )
    assert [one.get("role") for one in body["input"]] == ["user", "user"]
    assert len(dropped(wire)) == 1
    wire, body = written(adapter, Message.user([TextBlock("Go"), opaque(answer)]))
    assert body["input"] == [{"role": "user", "content": "Go"}]
    assert len(dropped(wire)) == 1


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


@each_pair
def test_after_a_swap_a_reply_is_dropped_with_its_call(call: JsonObject, answer: JsonObject) -> None:
    """The call is bound to the first model's reasoning. Without the call, the host's reply is not sent either."""
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


PROGRAM = item("program", id="prog_1", call_id="call_p", code="look()", fingerprint="f")
PROGRAMS_END = item("program_output", id="po_1", call_id="call_p", result="3", status="completed")
CALLER: JsonObject = {"type": "program", "caller_id": "call_p"}
CALLED = r.call("look", "{}", caller=CALLER)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_calls_and_the_end_of_a_program_are_sent_back(streamed: bool) -> None:
    """The result of such a call also has its caller. Another model gets no program and no caller."""
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


def test_the_end_of_a_program_is_dropped_without_the_program() -> None:
    """The host may cut the history between a program and its end."""
    lost, items = sent_by(MODEL, Message.user("Go"), Message.assistant([opaque(PROGRAMS_END), TextBlock("3")]))
    assert len(lost) == 1
    assert [item.get("type") for item in items] == [None, "message"]


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


# -- A conversation with features that only Gemini has goes to every other provider and back. Each loss is
# reported.


GEMINI = WIRES[3]
OTHERS = [wire for wire in WIRES if wire is not GEMINI]
GEMINI_MODEL = "gemini-3-flash"
PNG = b"\x89PNG\r\n\x1a\nof the model"
OWN: dict[str, JsonObject] = {
    "videoMetadata": {"startOffset": "40s", "endOffset": "80s", "fps": 0.5},
    "mediaResolution": {"level": "MEDIA_RESOLUTION_HIGH"},
    "partMetadata": {"from": "the archive"},
}
SIGNATURE = "c2lnbmVkLWJ5LWdlbWluaQ=="
TOKEN = "dG9rZW4tb2YtZ2VtaW5p"
LOOK = ToolDefinition(
    "look", "Looks.", {"type": "object", "properties": {"input": {"type": "string"}}},
    provider_options={"gemini": {"behavior": "NON_BLOCKING"}},
)  # fmt: skip


def mine(**fields: Json) -> ProviderRaw:
    return ProviderRaw("gemini", fields)


ASKED: list[ContentBlock] = [
    DocumentBlock(url="https://www.youtube.com/watch?v=x", provider_raw=mine(videoMetadata=OWN["videoMetadata"])),
    ImageBlock(data=b"\x89PNG\r\n\x1a\n", media_type="image/png",
        provider_raw=mine(mediaResolution=OWN["mediaResolution"])),
    OpaqueBlock("fileData", mine(fileData={"fileUri": "gs://mine/x", "mimeType": "image/png"})),
    TextBlock("What is in these?", mine(partMetadata=OWN["partMetadata"])),
]  # fmt: skip
SAID: list[JsonObject] = [
    g.thought("Hm.", SIGNATURE),
    {"executableCode": {"language": "PYTHON", "code": "count()", "id": "x"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "3", "id": "x"}},
    {**g.text("Three."), "partMetadata": OWN["partMetadata"]},
    {"inlineData": {"mimeType": "image/png", "data": b64encode(PNG).decode()}},
    g.call("look", SIGNATURE, id="call-of-gemini", args={"input": "closer"}),
]
ABOUT: JsonObject = {
    "groundingMetadata": {"webSearchQueries": ["things"]},
    "citationMetadata": {"citations": [{"uri": "https://x.test"}]},
    "urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "https://x.test"}]},
    "logprobsResult": {"chosenCandidates": [{"token": "Three", "logProbability": -0.5}]},
    "safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "NEGLIGIBLE"}],
    "avgLogprobs": -0.5,
}


def conversation() -> list[Message]:
    """The whole conversation: a question, replies, a tool's result, and a paused reply with its rest."""
    answered = read_whole(
        GEMINI, g.chunk(*SAID, finish="STOP", usage=g.USAGE, **ABOUT), model=f"gemini:{GEMINI_MODEL}"
    )
    [call] = answered.reply.tool_uses
    shown = OpaqueBlock("fileData", mine(fileData={"fileUri": "gs://mine/y", "mimeType": "image/png"}))
    result = ToolResultBlock(call.id, (TextBlock("Closer."), shown), provider_raw=mine(scheduling="SILENT"))
    waiting = g.chunk(g.text("Once"), finish="CONTINUATION", usage=g.USAGE, continuationToken=TOKEN)
    return [
        Message.user(ASKED),
        Message.assistant(answered.content),
        Message(Role.TOOL, (result,)),
        Message.assistant(read(GEMINI, waiting, model=f"gemini:{GEMINI_MODEL}").content),
        Message.assistant(read(GEMINI, g.chunk(g.text(" more.")), g.END, model=f"gemini:{GEMINI_MODEL}").content),
    ]


def gemini_body(wire: Wire, messages: list[Message], model: str = "some-model") -> WireCall:
    adapter = create_adapter(
        wire.type_name, AdapterConfig(base_url=wire.base_url, options=wire.options), name=wire.name
    )
    assert isinstance(adapter, HttpAdapter)
    full = f"{wire.name}:{model}"
    tools = (LOOK,) if wire.calls_tools else ()
    asked = ask(*messages, model=full, tools=tools, capabilities=adapter.get_capabilities(full))
    return adapter.write_request(asked, stream=False)


@pytest.mark.parametrize("abroad", OTHERS, ids=lambda wire: wire.name)
def test_abroad_nothing_of_geminis_is_said_and_each_loss_is_reported(abroad: Wire) -> None:
    history = conversation()
    call = gemini_body(abroad, [*history, Message.user("And now?")])
    assert abroad.faults(call.body) + abroad.judged(call.body) == []
    text = call.body.decode()
    for word in ("What is in these?", "Three.", "Once", " more.", "And now?"):
        assert word in text
    secrets = (*OWN, *ABOUT, SIGNATURE, TOKEN, "the archive", "gs://mine", "count()", "SILENT")
    for secret in secrets:
        assert secret not in text
    assert ("NON_BLOCKING" in text) == (abroad.name == "interactions"), "which reads the options of its type, too"
    opaque = [block for message in history for block in message.content if isinstance(block, OpaqueBlock)]
    lost = [loss.block for loss in call.losses]
    in_result = 1
    assert sum(isinstance(block, OpaqueBlock) for block in lost) == len(opaque) + in_result
    assert any(isinstance(block, ThinkingBlock) for block in lost)
    film = ASKED[0]
    assert ("youtube" in text) != (film in lost)
    assert ("youtube" in text) == (abroad.name == "interactions")
    made = b64encode(PNG).decode()
    image = next(block for block in history[1].content if isinstance(block, ImageBlock))
    assert image in lost, "as the user's, or not at all: told either way"
    assert (made in text) == ("image/png" in text or "image_url" in text or '"images"' in text)


@pytest.mark.parametrize("abroad", OTHERS, ids=lambda wire: wire.name)
def test_back_at_gemini_the_contents_are_unchanged(abroad: Wire) -> None:
    """The request begins with the same contents as before."""
    history = conversation()
    stayed = gemini_body(GEMINI, [*history, Message.user("And now?")], GEMINI_MODEL)
    assert GEMINI.faults(stayed.body) + GEMINI.judged(stayed.body) == []
    assert not stayed.losses
    contents = msgspec.json.decode(stayed.body)["contents"]
    assert contents[0]["parts"] == [
        {"fileData": {"fileUri": "https://www.youtube.com/watch?v=x"}, "videoMetadata": OWN["videoMetadata"]},
        {
            "inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="},
            "mediaResolution": OWN["mediaResolution"],
        },
        {"fileData": {"fileUri": "gs://mine/x", "mimeType": "image/png"}},
        {"text": "What is in these?", "partMetadata": OWN["partMetadata"]},
    ]
    assert contents[1]["parts"] == SAID
    assert contents[2]["parts"][0]["functionResponse"]["scheduling"] == "SILENT"
    elsewhere = read_whole(abroad, abroad.body("Hello.", 0, "end")).content
    asked = [*history, Message.user("And now?"), Message.assistant(elsewhere), Message.user("Welcome back.")]
    back = msgspec.json.decode(gemini_body(GEMINI, asked, GEMINI_MODEL).body)["contents"]
    assert back[: len(contents)] == contents
    assert "Hello." in str(back[len(contents)])
