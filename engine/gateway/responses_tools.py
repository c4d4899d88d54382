"""The tools of a Responses request, and their conversion from and to the client's form. Pure.

A client executes some kinds of tools itself: functions, custom tools with one free text, and OpenAI's shells,
patches and tool search. Each becomes a `ToolDefinition`, so that every provider can call it. `WireTool` has the
client's form for the reply. All other kinds run at OpenAI, so only providers of this wire get them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from callboard.adapters import ToolDefinition
from callboard.adapters.requests.settings import CUSTOM
from callboard.bus.values.base import Json, JsonObject

from .wire import LossReport, a_text, free_form_schema, legal_name, object_schema, objects_in, rest_of

FUNCTION = "function"
NAMESPACE = "namespace"
OPENAI = "openai"
"""The key of fields for this wire in `provider_options`."""


class WireTool(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The client's form of a tool."""

    kind: str
    """The type: ``function``, ``custom`` or a key of `HOST_TOOLS`."""
    name: str
    """The name without its namespace."""
    namespace: str | None = None
    """The namespace that contains the tool; None for most tools."""


class HostTool(msgspec.Struct, frozen=True):
    """A type of OpenAI's tools that the client runs itself."""

    call: str
    """The type of a call's item."""
    output: str
    """The type of an output's item."""
    prefix: str
    """The prefix of the ids of calls."""
    description: str
    properties: JsonObject
    required: tuple[str, ...]


_COMMAND: JsonObject = {"type": "array", "items": {"type": "string"}}

HOST_TOOLS = {
    "local_shell": HostTool(
        "local_shell_call",
        "local_shell_call_output",
        "lsh",
        "Run a command on the user's machine, and get its output.",
        {
            "command": {**_COMMAND, "description": "The program and its arguments."},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
            "user": {"type": "string"},
        },
        ("command",),
    ),
    "shell": HostTool(
        "shell_call",
        "shell_call_output",
        "sh",
        "Run shell commands on the user's machine, and get their output.",
        {
            "commands": {**_COMMAND, "description": "The command lines, which run one after the other."},
            "timeout_ms": {"type": "integer"},
            "max_output_length": {"type": "integer", "description": "The largest number of characters to get."},
        },
        ("commands",),
    ),
    "apply_patch": HostTool(
        "apply_patch_call",
        "apply_patch_call_output",
        "apc",
        "Create, update or delete one file.",
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": {"type": "string", "description": "The file's path."},
            "diff": {
                "type": "string",
                "description": "The change in V4A format: lines that start with a space, + or -, below @@ "
                "anchors. A new file has + lines only. Leave it out to delete a file.",
            },
        },
        ("type", "path"),
    ),
    "tool_search": HostTool(
        "tool_search_call",
        "tool_search_output",
        "tsc",
        "Find tools for a purpose. The found tools can be called afterwards.",
        {"query": {"type": "string"}},
        (),
    ),
}
CALLS = {tool.call: kind for kind, tool in HOST_TOOLS.items()}
"""The kinds of tools, by the types of their calls."""
OUTPUTS = {tool.output: kind for kind, tool in HOST_TOOLS.items()}


def canonical_name(name: str, namespace: str | None = None) -> str:
    if namespace:
        name = f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
    return legal_name(name, "tool_")


class ToolTable:
    def __init__(self) -> None:
        self.definitions: dict[str, ToolDefinition] = {}
        self.wire: dict[str, WireTool] = {}
        """The client's form of each tool, except for plain functions with the same name."""
        self.hosted: list[Json] = []
        """Tools that only OpenAI can run, in the client's own form."""
        self.losses = LossReport()
        self._names: dict[WireTool, str] = {}
        self._without_space: dict[tuple[str, str], list[str]] = {}  # names by kinds and names without namespaces

    def add(self, tools: Json, param: str, namespace: str | None = None) -> list[str]:
        """Add tools. Returns their canonical names."""
        names: list[str] = []
        for tool, place in () if tools is None else objects_in(tools, param):
            names += self._add(tool, place, namespace)
        return names

    def _add(self, tool: JsonObject, place: str, namespace: str | None) -> list[str]:
        kind = tool.get("type", FUNCTION)
        if kind == NAMESPACE:
            return self._add_namespace(tool, place)
        if kind in (FUNCTION, CUSTOM):
            name = a_text(tool.get("name"), f"{place}.name")
            if kind == FUNCTION:
                return [self._define(WireTool(FUNCTION, name, namespace), _function(tool))]
            return [self._define(WireTool(CUSTOM, name, namespace), _free_form(tool))]
        if isinstance(kind, str) and _runs_at_client(kind, tool):
            return [self._define(WireTool(kind, kind), _host_tool(kind, tool))]
        if tool not in self.hosted:  # an item of the history may also contain the tool
            self.hosted.append(tool)
            self.losses.parameter(f"the tool {kind!r}", "it runs at OpenAI")
        return []

    def _add_namespace(self, tool: JsonObject, place: str) -> list[str]:
        space, earlier = a_text(tool.get("name"), f"{place}.name"), frozenset(self.definitions)
        names = self.add(tool.get("tools"), f"{place}.tools", space)
        description = _description(tool)
        for name in names[:1] if description else ():
            if name not in earlier:  # the namespace's description is on its first tool
                first = self.definitions[name]
                description = f"{first.description}\n\nAll tools of {space}: {description}".strip()
                self.definitions[name] = msgspec.structs.replace(first, description=description)
        return names

    def _define(self, wire: WireTool, fields: JsonObject) -> str:
        if wire in self._names:  # for example, a tool search found it again
            if fields["input_schema"] != self.definitions[self._names[wire]].input_schema:
                self.losses.parameter(f"the second tool named {wire.name!r}", "names of tools are unique")
            return self._names[wire]
        base_name = name = canonical_name(wire.name, wire.namespace)
        number = 1
        while name in self.definitions:
            number += 1
            name = canonical_name(f"{base_name[:60]}_{number}")
        self._names[wire] = name
        self._without_space.setdefault((wire.kind, wire.name), []).append(name)
        tool = self.definitions[name] = msgspec.convert({"name": name, **fields}, ToolDefinition)
        openai_fields = tool.provider_options.get(OPENAI)
        for field in openai_fields if isinstance(openai_fields, dict) else ():
            if field not in _TOLD:
                self.losses.parameter(f"{field!r} of the tool {wire.name!r}")
        if wire != WireTool(FUNCTION, name):
            self.wire[name] = wire
        return name

    def named(self, kind: str, name: str, namespace: str | None = None) -> str | None:
        """The canonical name of a tool of the request; None if the request has no such tool."""
        found = self._names.get(WireTool(kind, name, namespace))
        if found is None and namespace is None:
            # A client may omit the namespace if the name is unique.
            named = self._without_space.get((kind, name), ())
            found = named[0] if len(named) == 1 else None
        return found

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove all tools except these, because the client does not allow the other tools."""
        allowed = set(names)
        self.definitions = {name: tool for name, tool in self.definitions.items() if name in allowed}


_TOLD = frozenset({"type", "format", "defer_loading"})
"""Fields of OpenAI's tools that cause no loss at other providers: the description contains the grammar, and all
tools are loaded.
"""


def _runs_at_client(kind: str, tool: JsonObject) -> bool:
    if kind == "shell":
        environment = tool.get("environment")
        return not isinstance(environment, dict) or environment.get("type") == "local"
    if kind == "tool_search":
        return tool.get("execution") == "client"
    return kind in HOST_TOOLS


def _function(tool: JsonObject) -> JsonObject:
    rest = rest_of(tool, "type", "name", "description", "parameters", "strict")
    strict = tool.get("strict")
    return {
        "description": _description(tool),
        "input_schema": object_schema(tool.get("parameters")),
        "strict": strict if isinstance(strict, bool) else None,
        "provider_options": {OPENAI: rest} if rest else {},
    }


def _description(tool: JsonObject) -> str:
    description = tool.get("description")
    return description if isinstance(description, str) else ""


def _free_form(tool: JsonObject) -> JsonObject:
    """A custom tool as a function with one argument, the text. The description has the grammar."""
    return {
        "description": _description(tool),
        "input_schema": free_form_schema(tool.get("format")),
        "strict": False,
        "provider_options": {OPENAI: rest_of(tool, "name", "description")},
    }


def _host_tool(kind: str, tool: JsonObject) -> JsonObject:
    host_tool = HOST_TOOLS[kind]
    parameters = tool.get("parameters")
    schema: JsonObject = {
        "type": "object",
        "properties": host_tool.properties,
        "required": list(host_tool.required),
    }
    return {
        "description": _description(tool) or host_tool.description,
        "input_schema": object_schema(parameters) if isinstance(parameters, dict) else schema,
    }


# --- Calls and outputs of the kinds in HOST_TOOLS ---


def call_input(kind: str, item: JsonObject) -> JsonObject:
    match kind:
        case "apply_patch":
            fields = item.get("operation")
        case "tool_search":
            fields = item.get("arguments")
            if isinstance(fields, str):  # seen in a recording of one server
                try:
                    fields = msgspec.json.decode(fields)
                except msgspec.DecodeError:
                    fields = {"query": fields}
        case _:
            fields = item.get("action")
    input_fields = fields if isinstance(fields, dict) else {}
    hidden = "type" if kind == "local_shell" else ""
    return {name: value for name, value in input_fields.items() if value is not None and name != hidden}


def call_fields(kind: str, arguments: JsonObject) -> JsonObject:
    match kind:
        case "local_shell":
            command = _command(arguments.get("command"), ["bash", "-lc"])
            optional: JsonObject = {
                name: arguments[name] for name in ("timeout_ms", "working_directory", "user") if name in arguments
            }
            env = arguments.get("env")
            action: JsonObject = {"type": "exec", "command": command, "env": env if isinstance(env, dict) else {}}
            return {"action": action | optional}
        case "shell":
            limits = {name: arguments.get(name) for name in ("timeout_ms", "max_output_length")}
            return {"action": {"commands": _command(arguments.get("commands"), []), **limits}}
        case "apply_patch":
            return {"operation": arguments}
        case _:
            return {"arguments": arguments, "execution": "client"}


def _command(value: Json, before: list[str]) -> list[Json]:
    """Read a list of texts. A model may write a single text instead."""
    if isinstance(value, list):
        return [part if isinstance(part, str) else msgspec.json.encode(part).decode() for part in value]
    return [*before, value] if isinstance(value, str) else []


def output_text(kind: str, item: JsonObject, found: list[str]) -> str:
    """The text of an output's item. `found` are the canonical names of the tools in it."""
    if kind == "tool_search":
        return f"These tools can be called now: {', '.join(found)}" if found else "No tools were found."
    output = item.get("output")
    if output is None:
        return ""
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()
