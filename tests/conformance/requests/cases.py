"""A request of one wire and its expected body: the rows of the tables in this folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import pytest

from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ProviderRaw
from callboard.bus.values.messages import Message, ToolDefinition

from ...support.fake_http import FakeTransport, request
from ...support.virtual_time import FakeClock
from ...support.wires import WIRES, ChatWire, Wire

CLAUDE, RESPONSES, _, GEMINI, OLLAMA, TGI, INTERACTIONS = WIRES
CHAT = ChatWire("default")
OPENAI_CHAT = ChatWire("openai")
OLDER_GEMINI = "gemini-2.5-flash"
MODELS: Mapping[str, str] = {"gemini": "gemini-3-flash-preview", "tgi": "tgi"}
"""The models of rows without one. Other wires use `some-model`."""

PNG = b"\x89PNG\r\n\x1a\n"
PNG_64 = "iVBORw0KGgo="
PATH: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}}
READ_FILE = ToolDefinition("read_file", "Reads.", PATH)
DROPPED, LOST, CHANGED = "parameter_dropped", "content_dropped", "parameter_changed"


def model_of(wire: Wire) -> str:
    return MODELS.get(wire.name, "some-model")


def ours(wire: Wire, **data: Json) -> ProviderRaw:
    """Provider data of an earlier reply of the same provider."""
    return ProviderRaw(wire.name, data, model_of(wire))


class Written:
    """A request on a wire."""

    def __init__(
        self, wire: Wire, *messages: Message, model: str | None = None, stream: bool = False, **changes: object
    ) -> None:
        adapter = wire.make(FakeTransport(), FakeClock())
        assert isinstance(adapter, HttpAdapter)
        said = {"messages": messages} if messages else {}
        asked = request(**{"model": f"{wire.name}:{model or model_of(wire)}", **said, **changes})
        call = adapter.write_request(asked, stream=stream)
        self.body: JsonObject = msgspec.json.decode(call.body)
        self.headers = call.headers
        self.codes = [warning.code for warning in call.warnings]
        self.history: list[Json] = _listed(self.body.get(wire.history))

    def at(self, path: str) -> Json:
        """The value at a path of keys and positions. The empty path is the body, and a missing value is None."""
        value: Json = self.body
        for key in path.split(".") if path else ():
            match value:
                case dict():
                    value = value.get(key)
                case list() if -len(value) <= int(key) < len(value):
                    value = value[int(key)]
                case _:
                    return None
        return value


def _listed(history: Json) -> list[Json]:
    return history if isinstance(history, list) else [history]


class Case(msgspec.Struct, frozen=True):
    """A request and its expected body on one wire."""

    wire: Wire
    name: str
    """The phenomenon in short, for the test's id."""

    expected: Mapping[str, Json]
    """The expected values in the body by their paths. None means that the value is missing."""

    warnings: Iterable[str]
    asked: Mapping[str, object]
    """The request's fields."""

    def check(self, **usual: object) -> JsonObject:
        """Write the request, with the usual fields for those that the row lacks. Returns the body."""
        written = Written(self.wire, **{**usual, **self.asked})  # type: ignore[arg-type]
        assert {path: written.at(path) for path in self.expected} == self.expected
        assert sorted(written.codes) == sorted(self.warnings)
        if "provider_options" not in self.asked:  # provider options may have more than the vendor's types
            assert self.wire.judged(msgspec.json.encode(written.body)) == []
        return written.body


def row(
    wire: Wire, name: str, expected: Mapping[str, Json], warnings: Iterable[str] = (), **asked: object
) -> Case:
    return Case(wire, name, expected, warnings, asked)


def table(*cases: Case) -> pytest.MarkDecorator:
    """Parametrise a test by its `case`."""
    return pytest.mark.parametrize("case", cases, ids=[f"{_named(case.wire)}-{case.name}" for case in cases])


def _named(wire: Wire) -> str:
    return f"{wire.name}-{wire.quirks}" if isinstance(wire, ChatWire) else wire.name
