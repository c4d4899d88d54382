"""A scripted model that reads a file, edits it and answers. It uses the tools that its client offers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from callboard.bus.values.base import Json, JsonObject

SECRET = re.compile(r"code-[0-9a-f]{8}")
"""The word that the answer must contain, because only a reader of the file knows it."""
OLD, NEW = "the draft", "the final text"

READERS = ("Read", "read_file", "read", "exec_command", "shell_command", "shell", "exec")
EDITORS = ("Edit", "replace", "edit", "apply_patch", "exec")
"""The names of the clients' tools, best first. ``exec`` of Codex runs JavaScript that calls its other tools."""


class Offered(NamedTuple):
    """A tool that the client offers to the model."""

    name: str
    schema: JsonObject
    free_form: bool = False
    """Whether its input is a text instead of JSON."""
    namespace: str = ""


class Asked(NamedTuple):
    """The parts of a request that the model reads."""

    tools: Sequence[Offered]
    results: Sequence[str]
    """The texts of all tool results so far."""
    stream: bool
    schema: JsonObject | None = None
    """The schema that the answer must follow."""


class Call(NamedTuple):
    """A tool call. The input of a free-form tool is a text."""

    tool: Offered
    input: JsonObject | str


Reply: TypeAlias = Call | str


class ScriptedModel:
    """The model for one conversation about one file.

    Args:
        path: The file's absolute path.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.faults: list[str] = []
        """Faults in the client's requests."""

    def answer(self, asked: Asked) -> Reply:
        """The next step: read, edit, and answer."""
        reader, editor = _pick(asked.tools, READERS), _pick(asked.tools, EDITORS)
        if asked.schema is not None:
            return _json_of(asked.schema)
        if reader is None or editor is None:
            return "A title"  # a request outside of the conversation
        # opencode reports an aborted tool with this text
        results = [result for result in asked.results if "Tool execution aborted" not in result]
        match len(results):
            case 0:
                return Call(reader, self._input(reader, reads=True))
            case 1:
                if not SECRET.search(results[0]):
                    self.faults.append(f"the result of {reader.name} is {results[0][:300]!r}")
                return Call(editor, self._input(editor, reads=False))
            case 2:
                found = SECRET.search(results[0])
                return f"The file has {found[0] if found else 'no code'}, and is final now."
            case more:
                self.faults.append(f"{more} results came back")
                return "Too many results."

    def _patch(self) -> str:
        return (
            f"*** Begin Patch\n*** Update File: {self.path}\n@@\n-This is {OLD}.\n+This is {NEW}.\n*** End Patch\n"
        )

    def _text(self, tool: Offered, *, reads: bool) -> str:
        """The input of a free-form tool."""
        if _base(tool) != "exec":
            return self._patch()
        argument = json.dumps({"cmd": f"cat {self.path}"} if reads else self._patch())
        return f"text(await tools.{'exec_command' if reads else 'apply_patch'}({argument}));"

    def _input(self, tool: Offered, *, reads: bool) -> JsonObject | str:
        """The arguments, with the parameter names of the tool's schema."""
        if tool.free_form:
            return self._text(tool, reads=reads)
        command = f"cat {self.path}"
        values: Mapping[str, Json] = {
            **dict.fromkeys(("file_path", "absolute_path", "filePath", "path"), self.path),
            **dict.fromkeys(("old_string", "oldString"), OLD),
            **dict.fromkeys(("new_string", "newString"), NEW),
            **dict.fromkeys(("patchText", "patch", "input"), self._text(tool, reads=reads)),
            **dict.fromkeys(("instruction", "description"), "Make it final."),
            "cmd": command,
        }
        fields: Any = tool.schema.get("properties") or {}
        arguments = {name: values[name] for name in fields if name in values}
        if "command" in fields:
            is_list = fields["command"].get("type") == "array"
            arguments["command"] = ["bash", "-lc", command] if is_list else command
        return arguments


def _base(tool: Offered) -> str:
    """The name of a tool without its namespace. Each wire joins the two differently."""
    return re.split(r"__|\.|/", tool.name)[-1]


def _pick(tools: Sequence[Offered], names: Sequence[str]) -> Offered | None:
    by_name = {_base(tool): tool for tool in tools}
    return next((by_name[name] for name in names if name in by_name), None)


def _json_of(schema: JsonObject) -> str:
    """The shortest JSON that follows a schema of plain objects."""
    return json.dumps(least(schema))


def least(schema: Any) -> Json:
    """The smallest value that follows a schema of plain objects."""
    match str(schema.get("type", "string")).lower():
        case "object":
            return {name: least(inner) for name, inner in (schema.get("properties") or {}).items()}
        case "array":
            return []
        case "boolean":
            return False
        case "integer" | "number":
            return 1
        case _:
            return str((schema.get("enum") or ["x"])[0])
