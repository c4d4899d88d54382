"""The body of a Messages API request. Pure.

This module writes tools, cache breakpoints, the form of the reply, and the headers of beta features. `messages`
writes the history, and `settings` sampling and thinking.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TypeAlias, cast

import msgspec

from callboard.bus.errors import InvalidRequestError, WarningCode
from callboard.bus.values.base import Json, JsonObject, json_size
from callboard.bus.values.messages import CallWarning, Role, ToolDefinition

from ...contract import CanonicalRequest
from ...requests.content import encode_json
from ...requests.history import fit_history
from ...requests.history_target import Loss, Target, ToolIdRule, WireCall
from ...requests.schemas import encoded_tool, fold_root, instruction
from ...requests.settings import check_demands, check_tool_choice, joined_options, merge_options, put, tool_options
from . import response
from .data import find_model
from .messages import (
    IMAGE_MEDIA_TYPES,
    PDF,
    TEXT_MEDIA_TYPES,
    MessageWriter,
    ServerTraits,
    open_container,
    write_system,
)
from .settings import Tuning, check_choice, fit_schema, output_limit

# Breakpoints of Anthropic's prompt cache.

MOST = 4
TTLS = ("5m", "1h")
_BYTES_PER_TOKEN = 3  # a low number, so that a prompt of doubtful length gets a breakpoint
_IMAGE_BYTES = 3_000  # the bytes with which an image of any size is counted
_MARKED = "cache_control"
_CARRIERS = frozenset({"text", "image", "document", "tool_use", "tool_result", "server_tool_use", "mcp_tool_use"})


_Spot: TypeAlias = tuple[list[Json], int]
"""A block that can have a breakpoint: its list and index."""


def mark(
    body: JsonObject, *, minimum: int, ttl: str, joined: int | None, tools_bytes: int, hosts: bool = True
) -> None:
    """Put cache breakpoints into a body. Blocks that get a breakpoint are copied.

    `joined` is the number of messages in the JSON of the first ones, or None if no message gets a breakpoint.
    """
    spots = _spots(body, minimum * _BYTES_PER_TOKEN, tools_bytes, None if _MARKED in body else joined)
    room = MOST - len(list(_marked(body))) if hosts else MOST
    chosen = spots[-room:] if room > 0 else []
    control: JsonObject = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    for home, at in chosen:
        block = home[at]
        assert isinstance(block, dict)
        home[at] = {**block, _MARKED: control}
    if chosen and room < MOST:
        _keep_order(body, control)


def keep_latest(body: JsonObject) -> None:
    """Remove the oldest breakpoints of the messages, down to the limit.

    If the host marks every message, each turn adds a breakpoint. The last breakpoints cover the earlier ones.
    """
    surplus = len(list(_marked(body))) - MOST
    messages = body["messages"]
    for message in messages if surplus > 0 and isinstance(messages, list) else ():
        for home in _homes(_field(message, "content")):
            for at, block in enumerate(home):
                if surplus > 0 and isinstance(block, dict) and _MARKED in block:
                    home[at] = {name: value for name, value in block.items() if name != _MARKED}
                    surplus -= 1


def _homes(blocks: Json) -> Iterator[list[Json]]:
    """Yield lists of blocks in the order of the prompt. A list comes before the lists inside its blocks."""
    if isinstance(blocks, list):
        yield blocks
        for block in blocks:
            yield from _homes(_field(block, "content"))


def _keep_order(body: JsonObject, ours: JsonObject) -> None:
    """Remove Callboard's breakpoints if a longer-lived breakpoint would follow a shorter-lived one.

    The API refuses that order.
    """
    marked = list(_marked(body))
    brief = ours.get("ttl") is None
    spoiled: list[JsonObject] = []
    for number, block in enumerate(marked):
        if block[_MARKED] is not ours:
            continue
        others = marked[number + 1 :] if brief else marked[:number]
        # all of Callboard's breakpoints have the same lifetime
        if any(_is_brief(other) is not brief for other in others):
            spoiled.append(block)
    for block in spoiled:
        del block[_MARKED]


def _spots(body: JsonObject, least: int, size: int, joined: int | None) -> list[_Spot]:
    """The places where a breakpoint may be set, in the order of the prompt.

    Only places after enough text count. The last places are the most important, because they cover all text before
    them.
    """
    spots: list[_Spot | None] = []
    tools = body.get("tools")
    if size >= least and isinstance(tools, list):
        spots.append(_last(tools, any_kind=True))
    system = body.get("system")
    if isinstance(system, str):
        size += len(system)
        if size >= least and system:  # a string can't have a breakpoint
            system = body["system"] = [{"type": "text", "text": system}]
    elif isinstance(system, list):
        size += json_size(system)
        if size >= least:
            system = body["system"] = system[:]  # the list belongs to the host
    if size >= least and isinstance(system, list):
        spots.append(_last(system))
    messages = body["messages"]
    if joined is not None and isinstance(messages, list):
        spots += _in_messages(messages, joined, size, least)
    return [spot for spot in spots if spot is not None]


def _in_messages(messages: list[Json], joined: int, size: int, least: int) -> list[_Spot | None]:
    """The last user block before the last reply, and the last block."""
    last = reply = len(messages) - 1
    while reply > 0 and _field(messages[reply], "role") != "assistant":
        reply -= 1
    enough = _long_enough_with(messages, joined, size, least)
    contents = [_field(messages[number], "content") for number in (reply - 1, last) if number >= enough]
    return [_last(content) for content in contents if isinstance(content, list)]


_PLAIN_BYTES = len('{"role":"user","content":[{"type":"text","text":""}]},')
"""The bytes of a plain message without its text."""


def _long_enough_with(messages: list[Json], joined: int, size: int, least: int) -> int:
    """The index of the message at which the prompt is long enough; the number of messages if it never is."""
    if size >= least:
        return 0
    for place, message in enumerate(messages):
        if not isinstance(message, dict):  # the JSON of several plain messages
            size += memoryview(cast("msgspec.Raw", message)).nbytes - joined * _PLAIN_BYTES
            content = None
        else:
            content = message.get("content")
        for block in content if isinstance(content, list) else ():
            text = block.get("text") if isinstance(block, dict) else None  # usually a text block
            size += len(text) if isinstance(text, str) else _size(block)
        if size >= least:
            return place
    return len(messages)


def _last(blocks: list[Json], *, any_kind: bool = False) -> _Spot | None:
    """The last block that can get a breakpoint. None if the host has set a breakpoint there or later."""
    for at in range(len(blocks) - 1, -1, -1):
        block = blocks[at]
        if isinstance(block, dict):
            if _MARKED in block:
                return None
            if (any_kind and not block.get("defer_loading")) or (not any_kind and _carries(block)):
                return blocks, at
    return None


def _carries(block: JsonObject) -> bool:
    kind = block.get("type")
    if kind == "text":
        text = block.get("text")
        return isinstance(text, str) and bool(text.strip())
    return kind in _CARRIERS or (isinstance(kind, str) and kind.endswith("_tool_result"))


def _size(block: Json) -> int:
    match block:
        case {"text": str(text)}:
            return len(text)
        case {"type": "tool_result", "content": str(text)}:
            return len(text)
        case {"type": "image" | "document"}:
            return _IMAGE_BYTES
        case {"type": "tool_result", "content": list(parts)}:
            return sum(_size(part) for part in parts)
        case {"type": "tool_use", "input": arguments}:
            return json_size(arguments)
        case {"type": "thinking", "signature": str(signature)}:
            return len(signature)
        case _:
            return 0


def _field(message: Json, name: str) -> Json:
    return message.get(name) if isinstance(message, dict) else None


def _parts(body: JsonObject) -> Iterator[JsonObject]:
    """Every element that may have a breakpoint, in the order of the prompt."""
    messages = body["messages"]
    contents = [_field(message, "content") for message in messages] if isinstance(messages, list) else []
    for blocks in (body.get("tools"), body.get("system"), *contents):
        if isinstance(blocks, list):
            for block in blocks:
                if isinstance(block, dict):
                    yield block
                    if isinstance(inner := block.get("content"), list):
                        yield from (part for part in inner if isinstance(part, dict))


def _marked(body: JsonObject) -> Iterator[JsonObject]:
    """Yield each object with a cache breakpoint, in the order of the prompt.

    The body is last, because its breakpoint is at the end of the prompt.
    """
    for block in _parts(body):
        if _MARKED in block:
            yield block
    if _MARKED in body:
        yield body


def _is_brief(block: JsonObject) -> bool:
    control = block[_MARKED]
    return not isinstance(control, dict) or control.get("ttl", "5m") == "5m"


TOOL_IDS = ToolIdRule(max_length=64, prefix="toolu_")
_WANT_THINKING = re.compile(r"(?i)deepseek|kimi|moonshot")
"""Models that reject calls without thinking, even behind a gateway."""
_CACHE_MINIMUM = 1024  # tokens, for an unlisted model
_OPTIONS = "anthropic"
"""The key of the protocol's options in a request, besides the adapter's own name."""
_FIELDS = attrgetter("provider_options")


def write_request(
    request: CanonicalRequest, *, provider: str, options: Mapping[str, Json], stream: bool
) -> WireCall:
    target = Target(
        provider=provider,
        model=request.wire_model,
        tool_ids=TOOL_IDS,
        accepts_documents=True,
        image_types=IMAGE_MEDIA_TYPES,
        document_types=(PDF, *TEXT_MEDIA_TYPES),
        results_carry=("image", "document", "opaque"),
        replays_thinking=True,
        adopts_signatures=True,
        begins_with_user=True,
        takes_opaque=True,
        takes_system_parts=True,
    )
    check_demands(request, request.capabilities, provider)
    return _Writer(request, target, stream).write(options)


class _Writer:
    def __init__(self, request: CanonicalRequest, target: Target, stream: bool) -> None:
        self.request = request
        self.model = find_model(target.model)
        self.target = target
        self.stream = stream
        self.history = fit_history(request, target)
        schema = request.output_schema
        self.held_to = None if schema is None else fit_schema(schema)
        self.joined = 0
        self.losses: list[Loss] = []
        self.warnings: list[CallWarning] = []

    def write(self, options: Mapping[str, Json]) -> WireCall:
        extra = joined_options(self.request, _OPTIONS, self.target.provider)
        betas = beta_names(options.get("beta_headers")) + beta_names(extra.pop("beta_headers", None))
        auto_cache = extra.pop("auto_cache", options.get("auto_cache"))
        ttl = extra.pop("cache_ttl", options.get("cache_ttl", TTLS[0]))
        if ttl not in TTLS:
            raise InvalidRequestError(f"cache_ttl {ttl!r} must be one of {', '.join(TTLS)}")
        body = self._body(extra, self._habits(options, extra))
        can = self.request.capabilities
        hosts = self._host_may_mark()
        if hosts:
            keep_latest(body)
        if auto_cache is not False and (can is None or can.supports_prompt_caching):
            minimum = _CACHE_MINIMUM if self.model is None else self.model.cache_minimum
            mark(
                body,
                minimum=minimum,
                ttl=str(ttl),
                joined=self.joined if "messages" not in extra and self._will_repeat() else None,
                tools_bytes=self._tools_bytes(body),
                hosts=hosts,
            )
        headers = {"anthropic-version": response.VERSION}
        if betas:
            headers["anthropic-beta"] = ",".join(dict.fromkeys(betas))
        history = self.history.with_losses(self.losses)
        history.log()
        warnings = history.warnings + tuple(self.warnings)
        return WireCall(response.PATH, encode_json(body), headers, warnings, history.losses, history.tool_ids)

    def _host_may_mark(self) -> bool:
        """Whether the host may have set breakpoints: it has options, tools with options, or blocks with fields."""
        request = self.request
        return (
            bool(request.provider_options)
            or len(self.history.plain) < len(request.messages)
            or any(map(_FIELDS, request.tools))
        )

    def _tools_bytes(self, body: JsonObject) -> int:
        """The approximate bytes of all tools, including tools in the host's options."""
        tools, ours = body.get("tools"), self.request.tools
        more = tools[len(ours) :] if isinstance(tools, list) else None
        return sum([tool.size for tool in ours]) + (json_size(more) if more else 0)

    def _will_repeat(self) -> bool:
        """Whether the messages will probably be sent again. If not, writing them to the cache only costs more."""
        request = self.request
        return bool(request.session_id or request.tools) or any(
            message.role is Role.ASSISTANT for message in request.messages
        )

    def _habits(self, options: Mapping[str, Json], extra: JsonObject) -> ServerTraits:
        """The traits of the server, from the options or the model's name."""
        name, thinking = self.target.model or "", extra.get("thinking")
        is_claude = self.model is not None or "claude" in name.lower()
        form = "signed" if is_claude else "with_calls" if _WANT_THINKING.search(name) else "unsigned"
        back = options.get("thinking_back") or form
        thinks = not (isinstance(thinking, dict) and thinking.get("type") == "disabled")
        return ServerTraits(
            errors_in_words=options.get("errors_in_words") is True,
            unsigned_thinking=back != "signed",
            thinking_stand_in=" " if back == "with_calls" and thinks else None,
            blank_results=is_claude,
        )

    def _body(self, extra: JsonObject, habits: ServerTraits) -> JsonObject:
        """The body, in the order of the cache: tools, system, messages."""
        request = self.request
        check_choice(request, self.model, extra.get("thinking"))
        limit, warnings = output_limit(request, self.model, self.target.provider)
        body: JsonObject = {"model": self.target.model, "max_tokens": limit}
        if request.tools:
            body["tools"] = self._tools(request)
        merge_options(body, {name: extra.pop(name) for name in ("tools",) if name in extra})
        tools = body.get("tools")
        choice = self._tool_choice(tools if isinstance(tools, list) else [])
        if choice is not None:
            body["tool_choice"] = choice
        system = self._system()
        if system is not None:
            body["system"] = system
        writer = MessageWriter(self.history, habits)
        body["messages"], self.losses = writer.write(), writer.losses
        self.joined = writer.joined
        container = open_container(self.history)
        if container is not None:  # the host's may be an object, with skills
            body["container"] = {"id": container} if isinstance(extra.get("container"), dict) else container
        tuning = Tuning(request, self.target.provider, self.model, extra)
        tuning.write(body)
        self.warnings += [*warnings, *tuning.warnings]
        if isinstance(self.held_to, dict):
            put(body, "output_config.format", {"type": "json_schema", "schema": self.held_to})
        body["stream"] = self.stream
        merge_options(body, extra)
        return body

    def _tools(self, request: CanonicalRequest) -> list[Json]:
        """The tools as JSON. The last tool is not taken from the cache, because it may get a breakpoint."""
        if request.tool_choice is not None or any(map(_FIELDS, request.tools)):
            return [
                self._with_options(tool) if tool.provider_options else self._tool(tool) for tool in request.tools
            ]
        *others, last = request.tools
        written = [encoded_tool(tool, "messages_json", self._tool, self.warnings) for tool in others]
        return [*written, self._tool(last)]

    def _with_options(self, tool: ToolDefinition) -> JsonObject:
        options = tool_options(tool, _OPTIONS, self.target.provider)
        written: JsonObject
        if options.get("type") in (None, "custom"):
            written = self._tool(tool)
        else:  # the vendor defines the tool, such as a shell, and the model already knows its arguments
            written = {"name": tool.name, "strict": True} if tool.strict else {"name": tool.name}
        merge_options(written, options)
        return written

    def _tool(self, tool: ToolDefinition) -> JsonObject:
        fields: JsonObject = {"name": tool.name}
        if tool.description:
            fields["description"] = tool.description
        folded = fold_root(tool.input_schema)
        if folded.folded:
            self.warnings += folded.warnings(f"tool {tool.name!r}")
        fields["input_schema"] = _strict_schema(tool, folded.schema) if tool.strict else folded.schema
        if tool.strict:
            fields["strict"] = True
        return fields

    def _system(self) -> str | list[Json] | None:
        """The system text, with the schema if the model can't enforce it."""
        schema, system = self.request.output_schema, write_system(self.history)
        if schema is None or isinstance(self.held_to, dict):
            return system
        why = f"the model does not support the schema, which was sent in the system prompt: {self.held_to}"
        self.warnings.append(CallWarning(WarningCode.SCHEMA_AS_INSTRUCTION, f"{self.target.provider}: {why}"))
        prompt = instruction(schema, with_tools=bool(self.request.tools))
        if isinstance(system, list):
            return [*system, {"type": "text", "text": prompt}]
        return "\n\n".join(text for text in (system, prompt) if text)

    def _tool_choice(self, tools: Sequence[Json]) -> JsonObject | None:
        choice, parallel = self.request.tool_choice, self.request.parallel_tool_calls
        if choice is not None:
            check_tool_choice(choice, [tool.get("name") for tool in tools if isinstance(tool, dict)])
        wire_choice: JsonObject
        match choice.mode if choice is not None else None:
            case None | "auto" | "none" if not tools:
                return None
            case None if parallel is not False:
                return None
            case "none":
                return {"type": "none"}  # this choice has no option for parallel calls
            case "required":
                wire_choice = {"type": "any"}
            case "named":
                assert choice is not None
                wire_choice = {"type": "tool", "name": choice.tool_name}
            case _:
                wire_choice = {"type": "auto"}
        if parallel is False:
            wire_choice["disable_parallel_tool_use"] = True
        return wire_choice


# --- Helpers ---


def _strict_schema(tool: ToolDefinition, schema: JsonObject) -> JsonObject:
    fitted = fit_schema({"properties": {}, **schema})  # `properties` is required, even if there are no arguments
    if isinstance(fitted, str):
        raise InvalidRequestError(f"tool {tool.name!r} can't be strict: {fitted}. Define it with strict=False")
    return fitted


def beta_names(value: Json) -> list[str]:
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return [name.strip() for name in names if isinstance(name, str) and name.strip()]
