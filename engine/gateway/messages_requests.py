"""Reads requests of Anthropic's Messages API. Pure.

The reverse of the adapter's `request` and `messages`. If a field has no canonical equivalent, it is stored in
``provider_options["anthropic"]`` or in the `provider_raw` of its block, for providers of the Messages API. For
other providers, it is listed among the losses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from callboard.adapters import CanonicalRequest
from callboard.adapters.providers.anthropic.data import BUDGETS, LEAST_BUDGET
from callboard.adapters.requests.settings import EFFORTS
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import TextBlock
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition

from .messages_content import (
    OWN_ID,
    PROTOCOL,
    ContentReader,
    Losses,
    bad,
    bool_at,
    int_in,
    is_own_signature,
    list_at,
    number_at,
    object_at,
    object_in,
    objects_at,
    required,
    text_at,
    text_in,
)
from .wire import ClientRequest, first_text, fitting_schema, rest_of

_READ = frozenset(
    {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "stop_sequences"}
    | {"temperature", "top_p", "metadata", "output_config", "output_format", "thinking"}
)
"""The fields with a canonical equivalent. All others are sent to the provider unchanged."""

_KEPT_HEADERS = ("anthropic-beta", "anthropic-version")


def read_request(
    body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
) -> ClientRequest:
    """Read a request. Raises BadRequest with Anthropic's wording and the path of the field.

    The path never has the model or the stream. A body of ``/v1/messages/count_tokens`` has no `max_tokens`, so add
    one before.
    """
    return _Reader(body, headers).read()


class _Reader:
    def __init__(self, body: JsonObject, headers: Mapping[str, str]) -> None:
        self.body = body
        self.sent = body  # the body for a provider of the Messages API
        self.headers = headers
        self.losses = Losses()
        self.content = ContentReader(self.losses)
        self.options: JsonObject = {}  # for providers of the Messages API

    def read(self) -> ClientRequest:
        body = self.body
        model = text_in(body, "model")
        limit = int_in(body, "max_tokens", "", least=1)
        messages = self.content.messages(required(body, "messages"))
        if self.content.has_own_replies:
            self.sent = for_providers(body)
        system_prompt, system = self.content.system(body.get("system"))
        schema, tools = self._output_schema(), self._tools()
        request = CanonicalRequest(
            request_id="",
            model=model,
            messages=(*system, *messages),
            max_output_tokens=limit,
            tools=tools,
            system_prompt=system_prompt,
            stop_sequences=tuple(
                text_at(stop, f"stop_sequences.{at}")
                for at, stop in enumerate(list_at(body.get("stop_sequences") or [], "stop_sequences"))
            ),
            temperature=self._number("temperature"),
            top_p=self._number("top_p"),
            user=self._user(),
            output_schema=schema,
            tool_choice=self._tool_choice(tools),
            parallel_tool_calls=self._parallel(),
            reasoning_effort=self._effort(),
            has_beginning=self._has_beginning(messages),
            provider_options=self._provider_options(),
        )
        return ClientRequest(
            model=model,
            request=request,
            stream=bool_at(body.get("stream") or False, "stream"),
            body=self.sent,
            headers={name: self.headers[name] for name in _KEPT_HEADERS if name in self.headers},
            losses=tuple(self.losses),
            session_hint=_session(body, self.headers),
            tool_names=self.content.names,
        )

    # --- Settings ---

    def _number(self, name: str) -> float | None:
        value = self.body.get(name)
        return None if value is None else number_at(value, name)

    def _user(self) -> str | None:
        metadata = object_at(self.body.get("metadata") or {}, "metadata")
        rest = rest_of(metadata, "user_id")
        if rest:
            self.options["metadata"] = rest
            self.losses.fields("metadata", rest)
        user = metadata.get("user_id")
        return None if user is None else text_at(user, "metadata.user_id")

    def _output_schema(self) -> JsonObject | None:
        """The schema of the reply. `output_format` is its older name."""
        config = object_at(self.body.get("output_config") or {}, "output_config")
        rest = rest_of(config, "effort", "format")
        if rest:
            self.options["output_config"] = rest
            self.losses.fields("output_config", rest)
        for path, schema in (
            ("output_config.format", config.get("format")),
            ("output_format", self.body.get("output_format")),
        ):
            if schema is not None:
                fields = object_at(schema, path)
                if fields.get("type") != "json_schema":
                    raise bad(f"{path}.type", "Input should be 'json_schema'")
                return object_in(fields, "schema", path)
        return None

    def _effort(self) -> str | None:
        """The effort of the client's effort or thinking setting. The thinking setting itself is also kept."""
        config = self.body.get("output_config")
        level = config.get("effort") if isinstance(config, dict) else None
        effort = None if level is None else text_at(level, "output_config.effort")
        if effort is not None and effort not in EFFORTS:
            raise bad("output_config.effort", f"Input should be one of {', '.join(EFFORTS[1:])}")
        thinking = self.body.get("thinking")
        if thinking is None:
            return effort
        fields = object_at(thinking, "thinking")
        if "thinking" in self.sent:
            self.options["thinking"] = fields
        match required(fields, "type", "thinking"):
            case "disabled":
                return "none"
            case "enabled":
                budget = int_in(fields, "budget_tokens", "thinking.enabled", least=LEAST_BUDGET)
                return effort or _effort_of(budget)
            case str():
                return effort or "high"  # the vendor's default
            case _:
                raise bad("thinking.type", "Input should be a valid string")

    def _tool_choice(self, tools: Sequence[ToolDefinition]) -> ToolChoice | None:
        tool_choice = self.body.get("tool_choice")
        if tool_choice is None:
            return None
        fields = object_at(tool_choice, "tool_choice")
        match required(fields, "type", "tool_choice"):
            case "auto":
                return ToolChoice("auto")
            case "any":
                if self.body.get("tools") and not tools:
                    self.options["tool_choice"] = fields
                    self.losses.field("tool_choice", "the request's tools run at the provider")
                    return None
                return ToolChoice("required")
            case "none":
                return ToolChoice("none")
            case "tool":
                name = text_in(fields, "name", "tool_choice.tool")
                listed = self.options.get("tools")
                if isinstance(listed, list) and any(
                    isinstance(tool, dict) and tool.get("name") == name for tool in listed
                ):
                    self.options["tool_choice"] = fields
                    self.losses.field(
                        "tool_choice", f"only providers of the Messages API can be made to run {name}"
                    )
                    return None
                return ToolChoice("named", self.content.name(name))
            case kind:
                why = f"Input tag {kind!r} found using 'type' does not match any of the expected tags: "
                raise bad("tool_choice", why + "'auto', 'any', 'tool', 'none'")

    def _parallel(self) -> bool | None:
        choice = self.body.get("tool_choice")
        value = choice.get("disable_parallel_tool_use") if isinstance(choice, dict) else None
        if value is None:
            return None
        return False if bool_at(value, "tool_choice.disable_parallel_tool_use") else None

    def _has_beginning(self, messages: Sequence[Message]) -> bool:
        """Whether the model should continue the text of the last message. After a tool's block, it continues the
        tool's work instead.
        """
        content = messages[-1].content if messages and messages[-1].role is Role.ASSISTANT else ()
        begins = bool(content) and isinstance(content[-1], TextBlock)
        if begins:
            self.losses.changed("last message", "some models answer it instead of continuing it")
        return begins

    def _provider_options(self) -> Mapping[str, Json]:
        """The fields for providers of the Messages API. Call it last, because reading the other fields adds to
        them.
        """
        for name, value in self.sent.items():
            if name not in _READ and value is not None:
                self.options[name] = value
                self.losses.field(name)
        betas = self.headers.get("anthropic-beta")
        if betas:
            self.options["beta_headers"] = betas
        if self.losses.marked:
            self.options["auto_cache"] = False  # the client sets its own breakpoints
        return {PROTOCOL: self.options} if self.options else {}

    # --- Tools ---

    def _tools(self) -> tuple[ToolDefinition, ...]:
        tools: list[ToolDefinition] = []
        listed: list[Json] = []
        for fields, path in objects_at(self.body.get("tools") or [], "tools"):
            kind = fields.get("type") or "custom"
            shape = _shape_of(str(kind))
            if kind == "custom":
                tools.append(self._tool(fields, path))
            elif shape is not None:
                tools.append(self._vendors_tool(fields, shape, path))
            else:
                listed.append(fields)
                self.losses.field(
                    f"tool {kind}", "the provider runs it, so only providers of the Messages API have it"
                )
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise bad("tools", "Tool names must be unique.")
        if listed:
            self.options["tools"] = listed
        return tuple(tools)

    def _tool(self, fields: JsonObject, path: str) -> ToolDefinition:
        path = f"{path}.custom"
        description = fields.get("description")
        input_schema = object_in(fields, "input_schema", path)
        strict = fields.get("strict")
        name = self.content.name(text_in(fields, "name", path))
        schema = fitting_schema(input_schema)
        if schema is not input_schema:
            self.losses.changed(f"tool {name!r}", "its schema was changed, because providers would refuse it")
        rest = rest_of(fields, "name", "description", "input_schema", "strict")
        self.losses.fields("tools", rest_of(rest, "type"))
        return ToolDefinition(
            name,
            "" if description is None else text_at(description, f"{path}.description"),
            schema,
            None if strict is None else bool_at(strict, f"{path}.strict"),
            provider_options={PROTOCOL: rest} if rest else {},
        )

    def _vendors_tool(self, fields: JsonObject, shape: Mapping[str, Json], path: str) -> ToolDefinition:
        """A tool that Anthropic defines and the client runs. Other models get its schema from `_SHAPES`."""
        name = self.content.name(text_in(fields, "name", path))
        rest = rest_of(fields, "name")
        self.losses.fields("tools", rest_of(rest, "type"))
        return ToolDefinition(
            name,
            str(shape["description"]),
            {"type": "object", "properties": shape["properties"], "required": shape["required"]},
            provider_options={PROTOCOL: rest},
        )


# --- Helpers ---


def _effort_of(budget: int) -> str:
    """The effort with the nearest budget, at most ``high``, because some clients always set the largest budget."""
    efforts = ("minimal", "low", "medium", "high")
    return min(efforts, key=lambda effort: abs(BUDGETS[effort] - budget))


_SESSION = re.compile(r"_session_([0-9A-Za-z-]{8,64})$")


def _session(body: JsonObject, headers: Mapping[str, str]) -> str | None:
    """The conversation's id that Claude Code sends in a header or in the user's id."""
    metadata, header = body.get("metadata"), headers.get("x-claude-code-session-id")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if header or not isinstance(user, str):
        return header or None
    if found := _SESSION.search(user):
        return found[1]
    try:
        fields = msgspec.json.decode(user)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return first_text(fields.get("session_id")) if isinstance(fields, dict) else None


# --- The client's body for its own providers ---


def for_providers(body: JsonObject) -> JsonObject:
    """Change a client's body so that providers of the Messages API accept it, even if the history has replies of
    other providers.

    Thinking without a signature of these providers is removed. If the last message answers calls that came without
    signed thinking, the thinking budget is removed, too, because Anthropic would refuse the request.
    """
    messages = body.get("messages")
    signed = [_bare(message) for message in messages] if isinstance(messages, list) else []
    sent: JsonObject = {**body, "messages": [message for message in signed if message is not None]}
    thinking, edits = body.get("thinking"), body.get("context_management")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled" and _answers_other(sent["messages"]):
        del sent["thinking"]
        if isinstance(edits, dict) and isinstance(edit_list := edits.get("edits"), list):
            allowed_edits = [
                edit for edit in edit_list if "thinking" not in str(isinstance(edit, dict) and edit.get("type"))
            ]
            sent["context_management"] = {**edits, "edits": allowed_edits}
    return sent


def _answers_other(messages: Json) -> bool:
    """Whether the last message answers calls that came without signed thinking."""
    if not isinstance(messages, list) or len(messages) < 2:
        return False
    called, answered = _blocks(messages[-2]), _blocks(messages[-1])
    kinds = [block.get("type") for block in called]
    return (
        any(block.get("type") == "tool_result" for block in answered)
        and "tool_use" in kinds
        and kinds[0] not in ("thinking", "redacted_thinking")
        and any(OWN_ID.fullmatch(str(block.get("id"))) for block in called)
    )


def _blocks(message: Json) -> list[JsonObject]:
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _bare(message: Json) -> Json:
    """A message without thinking from other providers; None if nothing remains."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(content, list) or not any(map(_is_unsigned, content)):
        return message
    signed = [block for block in content if not _is_unsigned(block)]
    return {**message, "content": signed} if signed else None


def _is_unsigned(block: Json) -> bool:
    signature = block.get("signature") if isinstance(block, dict) else None
    return isinstance(signature, str) and is_own_signature(signature)


# --- Tools that Anthropic defines and the client runs ---

_TEXT: Json = {"type": "string"}
_NUMBER: Json = {"type": "integer"}
_RANGE: Json = {"type": "array", "items": {"type": "integer"}}


def _command(*names: str) -> Json:
    return {"type": "string", "enum": list(names)}


_EDITS: JsonObject = {
    "path": _TEXT,
    "file_text": _TEXT,
    "old_str": _TEXT,
    "new_str": _TEXT,
    "insert_line": _NUMBER,
    "insert_text": _TEXT,
    "view_range": _RANGE,
}
_SHAPES: Mapping[str, Mapping[str, Json]] = {
    "bash": {
        "description": "Run a command in a bash shell that stays open. `restart` starts a new shell.",
        "properties": {"command": _TEXT, "restart": {"type": "boolean"}},
        "required": [],
    },
    "text_editor": {
        "description": "View, create and edit text files.",
        "properties": {"command": _command("view", "create", "str_replace", "insert", "undo_edit"), **_EDITS},
        "required": ["command", "path"],
    },
    "memory": {
        "description": "Read and write files of memory below /memories.",
        "properties": {
            "command": _command("view", "create", "str_replace", "insert", "delete", "rename"),
            **_EDITS,
            "old_path": _TEXT,
            "new_path": _TEXT,
        },
        "required": ["command"],
    },
    "computer": {
        "description": "Use the screen, the mouse and the keyboard of a computer. Coordinates are pixels, [x, y].",
        "properties": {
            "action": _command(
                *("screenshot", "key", "type", "mouse_move", "left_click", "right_click", "middle_click"),
                *("double_click", "triple_click", "left_click_drag", "left_mouse_down", "left_mouse_up"),
                *("scroll", "hold_key", "wait", "cursor_position", "zoom"),
            ),
            "coordinate": _RANGE,
            "start_coordinate": _RANGE,
            "text": _TEXT,
            "scroll_direction": _command("up", "down", "left", "right"),
            "scroll_amount": _NUMBER,
            "duration": {"type": "number"},
            "region": _RANGE,
        },
        "required": ["action"],
    },
}
"""The arguments of Anthropic's tools, for models that do not know them."""

_DATED = re.compile(r"(bash|text_editor|memory|computer)_\d{8}")


def _shape_of(kind: str) -> Mapping[str, Json] | None:
    found = _DATED.fullmatch(kind)
    return _SHAPES[found[1]] if found else None
