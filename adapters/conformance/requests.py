"""Sections 3.2, 3.4 and 4: requests sent, requests refused, and histories."""

from __future__ import annotations

import msgspec

from callboard.bus.errors import AdapterError, CapabilityError, InvalidRequestError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, ToolChoice, ToolDefinition

from ..contract import CanonicalRequest
from ..requests.settings import EFFORTS
from ..transport.transport import HttpRequest
from .checks import calling, check, content_in_short, over_http, read_events, require
from .kit import CALLS, TOOLS, Kit, NotShown, Says, Stage
from .streams import check_stream

TOOL_FORMAT = "Tool definition format implemented and tested"
MESSAGES = "Message conversion (both directions) implemented and tested"

PDF = "application/pdf"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8ffff3f0005fe02fe"
    "a735816b0000000049454e44ae426082"
)


def sent(at: Stage, number: int = -1) -> HttpRequest:
    if at.requests is None:
        raise NotShown("the adapter is not over HTTP")
    return at.requests[number]


def sent_body(at: Stage, number: int = -1) -> JsonObject:
    body: JsonObject = msgspec.json.decode(sent(at, number).body)
    return body


@check("3.2", "Model mapping defined")
async def the_request_names_the_model(kit: Kit) -> None:
    """The request has the model's own name, without the `provider:` prefix, and the limit."""
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        await at.adapter.complete(at.request(max_output_tokens=77))
        request = sent(at)
    sent_text = request.url + request.body.decode()
    if kit.names_model:
        require(kit.model in sent_text, f"{kit.model!r} is neither in the address nor in the body")
    require(at.model not in request.body.decode(), f"the body has the prefixed name {at.model!r}")
    require("77" in request.body.decode(), "max_output_tokens is not in the body")


@check("4.1", "System prompt format handled")
async def the_system_text_is_sent(kit: Kit) -> None:
    """`system_prompt` and all system and developer messages reach the model, each once."""
    history = (Message.system("Answer in French."), Message.developer("Be polite."), Message.user("Hello"))
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        await at.adapter.complete(at.request(*history, system_prompt="Be brief."))
        body = msgspec.json.encode(sent_body(at)).decode()
    for text in ("Be brief.", "Answer in French.", "Be polite.", "Hello"):
        require(body.count(text) == 1, f"{text!r} is in the request {body.count(text)} times")


@check("4.1", TOOL_FORMAT)
async def the_tools_are_sent(kit: Kit) -> None:
    """The name, description and parameters of every tool reach the model, even with thirty tools."""
    many = tuple(
        ToolDefinition(f"tool_{number}", f"Does thing {number}.", {"type": "object", "properties": {"x": {}}})
        for number in range(30)
    )
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        calling(at)
        await at.adapter.complete(at.request(tools=many))
        body = sent(at).body.decode()
    lost = [tool.name for tool in many if f'"{tool.name}"' not in body or tool.description not in body]
    require(not lost, f"of 30 tools these are not in the request: {lost}")


@check("4.1", "Tool choice mapping implemented")
async def a_tool_choice_is_sent_or_refused(kit: Kit) -> None:
    """Every tool choice is sent, or refused before anything is sent."""
    choices = (ToolChoice(), ToolChoice("none"), ToolChoice("required"), ToolChoice("named", TOOLS[0].name))
    for choice in choices:
        async with kit.stage(Says("Hi.", streamed=False)) as at:
            calling(at)
            await _sent_or_refused(at, at.request(tool_choice=choice), f"tool_choice {choice}")


async def _sent_or_refused(at: Stage, request: CanonicalRequest, what: str) -> None:
    """Send a request. A refusal must be a CapabilityError before anything is sent."""
    try:
        await at.adapter.complete(request)
    except CapabilityError:
        require(at.asked() == 0, f"{what} was refused after it had been sent")


@check("3.4", "Strict schema transformation (if applicable)")
async def awkward_schemas_are_sent_or_refused(kit: Kit) -> None:
    """Unusual schemas are sent or refused: optional parameters, nested objects, references, no parameters."""
    inner: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", None]}}}
    schemas: list[JsonObject] = [
        {"type": "object", "properties": {}},
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
            "required": [],
        },
        {"type": "object", "properties": {"rows": {"type": "array", "items": inner}}, "required": ["rows"]},
        {"type": "object", "properties": {"one": {"$ref": "#/$defs/inner"}}, "$defs": {"inner": inner}},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ]
    for schema in schemas:
        async with kit.stage(Says("Hi.", streamed=False)) as at:
            calling(at)
            await _sent_or_refused(at, at.request(tools=(ToolDefinition("t", "A tool", schema),)), f"{schema}")


@check("10", TOOL_FORMAT)
async def a_providers_ids_are_sent_back(kit: Kit) -> None:
    """Each tool call gets a unique Callboard id. Call and result are sent back with the provider's own id."""
    wire = over_http(kit)
    async with kit.stage() as at:
        count = 2 if at.capabilities.supports_parallel_tool_calls else 1
    scenes = Says("", calls=count, stop="tools", streamed=False), Says("Done.", streamed=False)
    async with kit.stage(*scenes) as at:
        calling(at)
        reply = await at.adapter.complete(at.request())
        ids = [call.id for call in reply.tool_uses]
        require(len(set(ids)) == count, f"{count} calls have the ids {ids}")
        results = [Message.tool_result(call.id, "ok") for call in reply.tool_uses]
        history = (Message.user("Hello"), Message.assistant(reply.content), *results)
        await at.adapter.complete(at.request(*history))
        calls, answers = wire.ids(sent_body(at))
    require(calls == wire.ids_issued(count), f"it gave {wire.ids_issued(count)}, and got {calls} back")
    require(answers == calls, f"the results of {calls} carry {answers}")


@check("10", MESSAGES)
async def a_tools_input_survives_the_round_trip(kit: Kit) -> None:
    """The input of a call in the history is sent unchanged: nested objects, arrays, every primitive."""
    tool_input: JsonObject = {
        "nested": {"deep": [1, 2.5, {"x": None}]},
        "flag": True,
        "text": 'quo"te \\ ☃\n',
        "empty": {},
        "list": [],
    }
    call = ToolUseBlock(id="tu_01J00000000000000000000009", name=CALLS[0][0], input=tool_input)
    history = (Message.user("Hello"), Message.assistant([call]), Message.tool_result(call.id, "ok"))
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        calling(at)
        await at.adapter.complete(at.request(*history))
        body = sent_body(at)
    require(
        _holds(body, tool_input),
        f"{tool_input} is not in the request, neither as an object nor as JSON text: {body}",
    )


def _holds(value: object, expected: JsonObject) -> bool:
    if value == expected:
        return True
    match value:
        case dict():
            return any(_holds(inner, expected) for inner in value.values())
        case list():
            return any(_holds(inner, expected) for inner in value)
        case str() if value.startswith("{"):
            try:
                return bool(msgspec.json.decode(value) == expected)
            except msgspec.DecodeError:
                return False
        case _:
            return False


@check("10", MESSAGES)
async def a_conversation_with_tools_continues(kit: Kit) -> None:
    """In a history with several tool calls, one of which failed, every call is followed by its result."""
    async with kit.stage() as at:
        calling(at)
    call = Says("Let me look.", calls=1, stop="tools")
    async with kit.stage(call, call, Says("Done.")) as at:
        history = [Message.user("Hello")]
        for is_error in (True, False):
            last = check_stream(await read_events(at, at.request(*history)))
            history.append(Message.assistant(last.final_content))
            calls = [block for block in last.final_content if isinstance(block, ToolUseBlock)]
            history += [Message.tool_result(each.id, "File not found", is_error=is_error) for each in calls]
        last = check_stream(await read_events(at, at.request(*history)))
        require(content_in_short(last.final_content) == ["Done."], f"the answer is {last.final_content}")
        ids = [block.id for message in history for block in message.content if isinstance(block, ToolUseBlock)]
        require(len(set(ids)) == 2, f"two calls in two replies have the ids {ids}")


@check("4.4", MESSAGES)
async def any_history_can_be_sent(kit: Kit) -> None:
    """Calls without results, results without calls, and other providers' data never make a request fail."""
    raw = ProviderRaw("somebody-else", {"type": "reasoning", "encrypted": "AAAA"}, "their-model")
    orphan = ToolUseBlock(id="tu_01J00000000000000000000001", name="read_file", input={"path": "a"})
    cut = ToolUseBlock(id="tu_01J00000000000000000000002", name="gone_tool", input={}, incomplete=True)
    history = (
        Message.user("Hello"),
        Message.assistant(
            [ThinkingBlock("a secret thought", "c2lnbmF0dXJl", raw), TextBlock("Well."), orphan, TextBlock("And.")]
        ),
        Message.assistant([RedactedThinkingBlock("AAAA", raw), OpaqueBlock("server_tool", raw), cut]),
        Message.tool_result("tu_01J00000000000000000000003", "of no call"),
        Message.user("Go on"),
        Message.assistant([]),
        Message.user("Please ☃"),
    )
    async with kit.stage(Says("Hi.", streamed=False), Says("Hi.")) as at:
        response = await at.adapter.complete(at.request(*history))
        check_stream(await read_events(at, at.request(*history)))
        require(response.text == "Hi.", f"the answer is {response.content}")
        if at.requests is None:
            return
        require(response.warnings, "the warnings do not list the content left out of the history")
        body = sent(at, 0).body.decode()
        require("c2lnbmF0dXJl" not in body, "a foreign signature was sent")
        try:
            calls, answers = over_http(kit).ids(sent_body(at, 0))
        except NotShown:
            return
    require(sorted(calls) == sorted(answers), f"the calls {calls} are answered by {answers}")


def _asks(at: Stage) -> dict[str, CanonicalRequest]:
    """Make one request for each capability. The request needs that capability."""
    audio = AudioBlock(data=b"RIFF\x24\x00\x00\x00WAVEfmt ", media_type="audio/wav")
    document = DocumentBlock(data=b"%PDF-1.4\n%%EOF", media_type=PDF, name="a.pdf")
    documents = at.capabilities.accepted_document_media_types
    if documents and PDF not in documents:
        document = DocumentBlock(data=b"a document", media_type=documents[0], name="a.txt")
    schema: JsonObject = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    look = TextBlock("Look.")
    return {
        "supports_images": at.request(Message.user([look, ImageBlock(data=PNG, media_type="image/png")])),
        "supports_audio": at.request(Message.user([look, audio])),
        "supports_documents": at.request(Message.user([look, document])),
        "supports_tools": at.request(tools=TOOLS),
        "supports_structured_output": at.request(output_schema=schema, tools=()),
    }


@check("3.4", "Strict schema transformation (if applicable)")
async def missing_capabilities_are_refused_or_warned_of(kit: Kit) -> None:
    """A request for a missing capability raises CapabilityError before anything is sent, or gets a warning."""
    async with kit.stage() as at:
        lacking = [name for name in _asks(at) if not getattr(at.capabilities, name)]
    if not lacking:
        raise NotShown("every capability is declared")
    for name in lacking:
        async with kit.stage(Says("Hi.", streamed=False)) as at:
            try:
                response = await at.adapter.complete(_asks(at)[name])
            except CapabilityError:
                require(at.asked() == 0, f"{name} is False, and was refused only after the request was sent")
                continue
            require(response.warnings, f"{name} is False, and was neither refused nor told in the warnings")


@check("3.4", MESSAGES)
async def requests_for_declared_capabilities_are_sent(kit: Kit) -> None:
    """A request that needs a declared capability is not refused."""
    async with kit.stage() as at:
        having = [name for name in _asks(at) if getattr(at.capabilities, name)]
    if not having:
        raise NotShown("no such capability is declared")
    for name in having:
        scene = Says('{"a": "x"}', streamed=False)
        async with kit.stage(scene) as at:
            try:
                await at.adapter.complete(_asks(at)[name])
            except CapabilityError as error:
                raise AssertionError(f"{name} is True, and it was refused: {error}") from error
            require(at.asked() == 1, f"{name}: {at.asked()} requests were sent")


# --- Section 3.2 ---

SETTINGS = "Model mapping defined"

EFFORT = "heroic"  # an unknown reasoning effort


async def refusal(at: Stage, *, streamed: bool = False, **fields: object) -> InvalidRequestError | None:
    """The error of a request that was refused before it was sent; None if it was sent."""
    try:
        if streamed:
            async for _ in at.adapter.stream(at.request(**fields)):
                pass
        else:
            await at.adapter.complete(at.request(**fields))
    except InvalidRequestError as error:
        require(at.asked() == 0, f"{fields} were refused after the request had been sent")
        return error
    return None


def names_it(error: InvalidRequestError, name: str) -> None:
    require(name in str(error), f"the error for {name!r} does not name it: {error}")


def _options(kit: Kit, name: str, value: Json) -> dict[str, Json]:
    return {kit.name: {name: value}}


async def body_of(kit: Kit, *, streamed: bool) -> JsonObject:
    async with kit.stage(Says("Hi.", streamed=streamed)) as at:
        await refusal(at, streamed=streamed)
        return sent_body(at)


@check("3.2", SETTINGS)
async def a_hosts_field_is_sent_or_refused(kit: Kit) -> None:
    """A field of `provider_options` is sent together with the adapter's own fields, or an error names it."""
    name, value = "a_field_of_the_host", "its value"
    before = await body_of(kit, streamed=False)
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        error = await refusal(at, provider_options=_options(kit, name, value))
        if error is not None:
            return names_it(error, name)
        body = sent_body(at)
    require(_has(body, name, value), f"{name!r} was dropped in silence: {body}")
    lost = before.keys() - body.keys()
    require(not lost, f"with a field of the host's the adapter's own {sorted(lost)} are gone")


def _has(value: Json, name: str, expected: Json) -> bool:
    if isinstance(value, dict):
        return value.get(name) == expected or any(_has(inner, name, expected) for inner in value.values())
    return False


@check("3.2", TOOL_FORMAT)
async def a_hosts_tools_are_sent_or_refused(kit: Kit) -> None:
    """Tools in `provider_options` are added to the request's own tools, or are an error that names the field."""
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        calling(at)
        error = await refusal(at, provider_options=_options(kit, "tools", [{"type": "of_the_host"}]))
        if error is not None:
            return names_it(error, "tools")
        body = msgspec.json.encode(sent_body(at)).decode()
    lost = [tool.name for tool in TOOLS if tool.name not in body]
    require(not lost, f"with a tool of the host's these of the request are gone: {lost}")
    require("of_the_host" in body, "the host's tool was dropped in silence")


@check("3.2", SETTINGS)
async def provider_options_cannot_change_model_or_streaming(kit: Kit) -> None:
    """A `provider_options` field that sets the model or streaming is an error that names the field."""
    plain, stream = await body_of(kit, streamed=False), await body_of(kit, streamed=True)
    others: JsonObject = {name: "another-model" for name, value in plain.items() if value == kit.model}
    for name in plain.keys() | stream.keys():
        in_whole, in_stream = plain.get(name, False), stream.get(name, False)
        if isinstance(in_whole, bool) and isinstance(in_stream, bool) and in_whole is not in_stream:
            others[name] = in_stream
    if not others:
        raise NotShown("the body has neither the model nor the kind of reply")
    for name, value in others.items():
        async with kit.stage(Says("Hi.", streamed=False)) as at:
            error = await refusal(at, provider_options=_options(kit, name, value))
        if error is None:
            raise AssertionError(f"a host can set {name!r} to {value!r}")
        names_it(error, name)


@check("3.2", SETTINGS)
async def an_unknown_reasoning_effort_is_refused(kit: Kit) -> None:
    """An unknown reasoning effort is refused before anything is sent, by an error that names it."""
    for streamed in (False, True):
        async with kit.stage(Says("Hi.", streamed=streamed)) as at:
            error = await refusal(at, streamed=streamed, reasoning_effort=EFFORT)
        if error is None:
            raise AssertionError(f"reasoning_effort {EFFORT!r} was {'streamed' if streamed else 'sent'}")
        names_it(error, EFFORT)


@check("3.2", SETTINGS)
async def every_warning_has_a_known_code(kit: Kit) -> None:
    """Every code of a warning is a `WarningCode`."""
    raw = ProviderRaw("somebody-else", {"type": "reasoning"}, "their-model")
    history = (Message.user("Hello"), Message.assistant([OpaqueBlock("server_tool", raw)]), Message.user("Go on"))
    variants: list[dict[str, object]] = [
        {"temperature": 1.7, "top_p": 0.5, "seed": 7, "verbosity": "low", "user": "somebody"},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5, "stop_sequences": (" ", "END")},
        {"output_schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
        {"messages": history},
    ]
    variants += [{"reasoning_effort": effort} for effort in EFFORTS]
    codes: set[str] = set()
    for fields in variants:
        async with kit.stage(Says("Hi.", streamed=False)) as at:
            try:
                response = await at.adapter.complete(msgspec.structs.replace(at.request(), **fields))
            except AdapterError:
                continue  # the request was refused, without a warning
            codes |= {warning.code for warning in response.warnings}
    unknown = codes - set(WarningCode)
    require(not unknown, f"these codes are no WarningCode: {sorted(unknown)}")
