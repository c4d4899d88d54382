"""Reads tools and the tool choice from requests of Chat Completions. Pure."""

from __future__ import annotations

from typing import NamedTuple

from callboard.adapters.requests.settings import CUSTOM
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import ToolChoice, ToolDefinition

from .chat_messages import MARKS
from .chat_reasoning import PROTOCOL
from .reading import (
    LossReport,
    ToolNames,
    a_list,
    a_text,
    an_object,
    free_form_schema,
    object_schema,
    wrong_type,
    wrong_value,
)
from .wire import BadRequest


class ReadTools(NamedTuple):
    tools: tuple[ToolDefinition, ...]
    choice: ToolChoice | None
    free_form: list[Json]
    """The canonical names of the free-form tools."""
    legacy: bool
    """Whether the client sent `functions` instead of `tools`."""
    protocol_fields: JsonObject
    """The protocol's options for tools and choices without a canonical equivalent."""


def read_tools(body: JsonObject, names: ToolNames, losses: LossReport) -> ReadTools:
    """Read the tools of a request and the tool choice. A list of allowed tools limits the offered tools.

    Raises:
        BadRequest: A tool or the choice can't be read.
    """
    return _Reader(body, names, losses).read()


class _Reader:
    def __init__(self, body: JsonObject, names: ToolNames, losses: LossReport) -> None:
        self.body = body
        self.names = names
        self.losses = losses
        self.protocol_fields: JsonObject = {}
        self.free_form: list[Json] = []
        self.legacy = bool(body.get("functions")) and not body.get("tools")

    def read(self) -> ReadTools:
        choice, tools = self._choice(self._tools())
        return ReadTools(tools, choice, self.free_form, self.legacy, self.protocol_fields)

    def _tools(self) -> tuple[ToolDefinition, ...]:
        found: dict[str, ToolDefinition] = {}
        others: list[Json] = []
        for where, tool in self._given_tools():
            read = self._tool(tool, where)
            if read is None:
                others.append(tool)
                self.losses.parameter(f"the tool of type {tool.get('type')!r}")
            elif read.name not in found:
                found[read.name] = read
            elif read != found[read.name]:
                self.losses.parameter(f"{where}", "another tool has its name")
        if others:
            self.protocol_fields["tools"] = others
        return tuple(found.values())

    def _given_tools(self) -> list[tuple[str, JsonObject]]:
        if self.legacy:
            functions = a_list(self.body["functions"], "functions")
            return [
                (f"functions[{place}]", {"type": "function", "function": function})
                for place, function in enumerate(functions)
            ]
        value = self.body.get("tools")
        tools = [] if value is None else a_list(value, "tools")
        return [(f"tools[{place}]", an_object(tool, f"tools[{place}]")) for place, tool in enumerate(tools)]

    def _tool(self, tool: JsonObject, where: str) -> ToolDefinition | None:
        match tool.get("type", "function"):
            case "function":
                return self._function(tool, an_object(tool.get("function"), f"{where}.function"), where)
            case "custom" if isinstance(tool.get(CUSTOM), dict):
                return self._free_form(an_object(tool[CUSTOM], f"{where}.custom"), where)
            case str():
                return None
            case _:
                raise wrong_type(f"{where}.type", "a string", tool["type"])

    def _function(self, tool: JsonObject, function: JsonObject, where: str) -> ToolDefinition:
        name = self.names.canonical(a_text(function.get("name"), f"{where}.function.name"))
        outside = _others(tool, ("type", "function"))
        inside = _others(function, ("name", "description", "parameters", "strict"))
        options: JsonObject = {}
        if outside or inside:
            fields: JsonObject = {**outside, **({"function": inside} if inside else {})}
            options[PROTOCOL] = fields
        for each in (*outside, *inside):
            if each in MARKS:
                self.losses.mark(each)
            else:
                self.losses.parameter(f"{where}.{each}")
        return ToolDefinition(
            name,
            _text(function.get("description")),
            self._schema(function.get("parameters"), f"{where}.function.parameters"),
            strict=function.get("strict") is True,
            provider_options=options,
        )

    def _schema(self, value: Json, where: str) -> JsonObject:
        kind = None if value is None else an_object(value, where).get("type")
        if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
            self.losses.changed(f"{where} has the type {kind!r}. Arguments are an object, so any is accepted")
            value = None
        return object_schema(value)

    def _free_form(self, tool: JsonObject, where: str) -> ToolDefinition:
        """Read a tool whose only argument is one text. Only OpenAI's two protocols have such tools; other
        protocols get a function.
        """
        name = self.names.canonical(a_text(tool.get("name"), f"{where}.custom.name"))
        self.free_form.append(name)
        fields: JsonObject = {"type": CUSTOM, **_others(tool, ("name", "description", "format"))}
        match tool.get("format"):
            case {"type": "grammar", "grammar": dict(grammar)}:
                fields["format"] = {"type": "grammar", **grammar}
                self.losses.parameter(f"the grammar of the tool {name!r}", "only OpenAI's protocols have it")
            case dict(form):
                fields["format"] = form
            case _:
                pass
        return ToolDefinition(
            name,
            _text(tool.get("description")),
            free_form_schema(tool.get("format")),
            provider_options={PROTOCOL: fields, "openai": dict(fields)},
        )

    def _choice(self, tools: tuple[ToolDefinition, ...]) -> tuple[ToolChoice | None, tuple[ToolDefinition, ...]]:
        """The tool choice, and the tools that it allows."""
        legacy = self.legacy
        field = "function_call" if legacy else "tool_choice"
        match self.body.get(field):
            case None:
                return None, tools
            case "auto" | "none" as mode:
                return ToolChoice(mode), tools
            case "required" | "any" if not legacy:
                return self._forced(tools), tools
            case {"name": str(name)} if legacy:
                return self._named(name, tools, field), tools
            case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}}:
                return self._named(name, tools, field), tools
            case {"type": "tool", "name": str(name)}:
                return self._named(name, tools, field), tools
            case {"type": "allowed_tools", "allowed_tools": {"tools": list(allowed), "mode": "required"}}:
                allowed_names = self._allowed(allowed, tools)
                return self._forced(allowed_names), allowed_names
            case {"type": "allowed_tools", "allowed_tools": {"tools": list(allowed)}}:
                return ToolChoice(), self._allowed(allowed, tools)
            case {"type": "auto" | "none" as mode}:
                return ToolChoice(mode), tools
            case {"type": "any" | "required"}:
                return self._forced(tools), tools
            case other:
                raise wrong_value(field, other, ("none", "auto", "required"))

    def _forced(self, tools: tuple[ToolDefinition, ...]) -> ToolChoice | None:
        if tools:
            return ToolChoice("required")
        if "tools" not in self.protocol_fields:
            raise BadRequest("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
        self.protocol_fields["tool_choice"] = self.body["tool_choice"]
        self.losses.parameter("tool_choice")
        return None

    def _named(self, name: str, tools: tuple[ToolDefinition, ...], field: str) -> ToolChoice:
        named = self.names.canonical(name)
        if all(tool.name != named for tool in tools):
            raise BadRequest(
                f"Invalid value for '{field}': no tool named '{name[:100]}' was specified.", param=field
            )
        return ToolChoice("named", named)

    def _allowed(self, allowed: list[Json], tools: tuple[ToolDefinition, ...]) -> tuple[ToolDefinition, ...]:
        names: set[str] = set()
        for each in allowed:
            match each:
                case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}} | {"name": str(name)}:
                    names.add(self.names.canonical(name))
                case _:
                    pass
        return tuple(tool for tool in tools if tool.name in names)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _others(fields: JsonObject, known_fields: tuple[str, ...]) -> JsonObject:
    return {name: value for name, value in fields.items() if name not in known_fields and value is not None}
