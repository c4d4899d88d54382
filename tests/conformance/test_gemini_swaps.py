"""A conversation that used what only Gemini has goes to every other provider and back, and says what was lost."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest

from callboard.adapters import create_adapter
from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire_call import WireCall
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
)
from callboard.bus.values.messages import Message, Role, ToolDefinition

from ..support.fake_http import ask
from ..support.wires import WIRES, Wire
from ..support.wires import gemini as g
from ..support.wires.reading import read, read_whole

GEMINI = WIRES[3]
OTHERS = [wire for wire in WIRES if wire is not GEMINI]
MODEL = "gemini-3-flash"
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
    ImageBlock(
        data=b"\x89PNG\r\n\x1a\n",
        media_type="image/png",
        provider_raw=mine(mediaResolution=OWN["mediaResolution"]),
    ),
    OpaqueBlock("fileData", mine(fileData={"fileUri": "gs://mine/x", "mimeType": "image/png"})),
    TextBlock("What is in these?", mine(partMetadata=OWN["partMetadata"])),
]
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
    """All of it: asked, answered, a tool's result, a reply that waited to go on and its rest."""
    answered = read_whole(GEMINI, g.chunk(*SAID, finish="STOP", usage=g.USAGE, **ABOUT), model=f"gemini:{MODEL}")
    [call] = answered.reply.tool_uses
    shown = OpaqueBlock("fileData", mine(fileData={"fileUri": "gs://mine/y", "mimeType": "image/png"}))
    result = ToolResultBlock(call.id, (TextBlock("Closer."), shown), provider_raw=mine(scheduling="SILENT"))
    waiting = g.chunk(g.text("Once"), finish="CONTINUATION", usage=g.USAGE, continuationToken=TOKEN)
    return [
        Message.user(ASKED),
        Message.assistant(answered.content),
        Message(Role.TOOL, (result,)),
        Message.assistant(read(GEMINI, waiting, model=f"gemini:{MODEL}").content),
        Message.assistant(read(GEMINI, g.chunk(g.text(" more.")), g.END, model=f"gemini:{MODEL}").content),
    ]


def written(wire: Wire, messages: list[Message], model: str = "some-model") -> WireCall:
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
    call = written(abroad, [*history, Message.user("And now?")])
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
def test_back_home_everything_is_as_it_was(abroad: Wire) -> None:
    """The request begins with the very contents that it had before."""
    history = conversation()
    stayed = written(GEMINI, [*history, Message.user("And now?")], MODEL)
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
    back = msgspec.json.decode(written(GEMINI, asked, MODEL).body)["contents"]
    assert back[: len(contents)] == contents
    assert "Hello." in str(back[len(contents)])
