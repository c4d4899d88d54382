"""Reads requests of OpenAI's Responses API. Pure.

A provider of this wire gets the client's own body. The canonical form is for all other providers. If a field has
no canonical equivalent, it is stored in ``provider_options["openai"]``. If it may change the reply, it is listed
among the losses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from callboard.adapters import AdapterCapabilities, CanonicalRequest, ToolChoice
from callboard.adapters.requests.settings import CUSTOM, EFFORTS, put
from callboard.bus.values.base import Json, JsonObject

from .failures import BadRequest
from .responses_items import InputReader, brings_tools, is_reference
from .responses_tools import FUNCTION, HOST_TOOLS, OPENAI, ToolTable
from .wire import (
    ClientRequest,
    a_flag,
    a_list,
    a_number,
    an_integer,
    first_text,
    missing,
    model_of,
    object_in,
    rest_of,
    wrong_type,
    wrong_value,
)

SESSION_HEADERS = (
    "session_id",
    "session-id",
    "conversation_id",
    "conversation-id",
    "thread_id",
    "thread-id",
    "x-session-id",
    "x-session-affinity",
)
"""Headers with the conversation's id. Codex sends the first and the third."""

_KEPT_HEADERS = ("openai-beta", "originator", "x-client-request-id", *SESSION_HEADERS)
_KEPT_PREFIX = "x-codex-"

_OF_WRITER = ("store", "previous_response_id", "conversation", "background")
"""Fields that the gateway implements itself. They are in `ClientRequest.options`."""

_READ = frozenset(
    {
        *("model", "stream", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning"),
        *("text", "max_output_tokens", "temperature", "top_p", "include", "user", "safety_identifier"),
        *_OF_WRITER,
    }
)

_WITHOUT_LOSS: Mapping[str, tuple[Json, ...] | None] = {
    "metadata": None,  # the reply repeats this field
    "client_metadata": None,  # this field only identifies the client
    "stream_options": None,  # obfuscated lengths don't matter to readers
    "prompt_cache_key": None,  # this field is the session's hint
    "max_tool_calls": None,  # this limit only counts calls of OpenAI's own tools
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
}
"""OpenAI's fields without effect at other providers, with any value or with the listed values."""

_DATA = "message.output_text.logprobs"


def read_request(
    body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
) -> ClientRequest:
    return _Reader(body, headers).read(model, stream)


class _Reader:
    def __init__(self, body: JsonObject, headers: Mapping[str, str]) -> None:
        self.body = body
        self.headers = headers
        self.options: JsonObject = {}  # for providers of this wire
        self.tools = ToolTable()
        self.losses = self.tools.losses

    def read(self, model: str | None, stream: bool) -> ClientRequest:
        body = self.body
        name = model_of(body, model)
        self.tools.add(body.get("tools"), "tools")
        reader = InputReader(self.tools)
        messages = reader.read(self._input())
        choice = self._tool_choice(body.get("tool_choice"))
        self._other_fields()
        effort = self._reasoning()
        verbosity, schema = self._text()
        self._include()
        limit = an_integer(body.get("max_output_tokens"), "max_output_tokens", least=1)
        for field in ("background", "store"):
            self._bool(field)
        if self.tools.hosted:
            self.options["tools"] = self.tools.hosted
        definitions = tuple(self.tools.definitions.values())
        request = CanonicalRequest(
            request_id="",
            model=name,
            messages=messages,
            system_prompt=self._str("instructions") or None,
            max_output_tokens=AdapterCapabilities().max_output_tokens if limit is None else limit,
            default_output_limit=limit is None,
            tools=definitions,
            tool_choice=choice,
            parallel_tool_calls=self._bool("parallel_tool_calls") if definitions else None,
            temperature=a_number(body.get("temperature"), "temperature"),
            top_p=a_number(body.get("top_p"), "top_p"),
            reasoning_effort=effort,
            verbosity=verbosity,
            output_schema=schema,
            user=self._user(),
            provider_options={OPENAI: self.options} if self.options else {},
        )
        return ClientRequest(
            model=name,
            request=request,
            stream=stream or self._bool("stream") is True,
            body=body,
            headers=self._kept_headers(),
            losses=tuple(self.losses),
            refers_to=next((name for name in ("conversation", "prompt") if body.get(name)), ""),
            session_hint=self._session(),
            options=self._writer_options(),
        )

    def _str(self, name: str) -> str | None:
        value = self.body.get(name)
        if value is not None and not isinstance(value, str):
            raise wrong_type(name, "a string", value)
        return value

    def _bool(self, name: str) -> bool | None:
        return a_flag(self.body.get(name), name)

    # --- Input ---

    def _input(self) -> Json:
        value = self.body.get("input")
        if value is None:
            if not any(self.body.get(name) for name in ("prompt", "previous_response_id", "conversation")):
                raise BadRequest(
                    "One of 'input', 'previous_response_id', 'prompt' or 'conversation' must be provided.",
                    param="input",
                )
            return []
        return value

    # --- Settings ---

    def _reasoning(self) -> str | None:
        fields = object_in(self.body, "reasoning")
        effort = fields.get("effort")
        if effort is not None and effort not in EFFORTS:
            raise wrong_value("reasoning.effort", effort, EFFORTS)
        rest = rest_of(fields, "effort")
        if rest:
            self.options["reasoning"] = rest
        for name in rest:
            if name not in ("summary", "generate_summary"):  # other providers always show their reasoning
                self.losses.parameter(f"reasoning.{name}")
        return effort if isinstance(effort, str) else None

    def _text(self) -> tuple[str | None, JsonObject | None]:
        fields = object_in(self.body, "text")
        verbosity, form = fields.get("verbosity"), fields.get("format")
        for name in fields:
            if name not in ("verbosity", "format"):
                self.losses.parameter(f"text.{name}")
                put(self.options, f"text.{name}", fields[name])
        return (verbosity if isinstance(verbosity, str) else None), self._schema(form)

    def _schema(self, form: Json) -> JsonObject | None:
        if form is None:
            return None
        kind = form.get("type") if isinstance(form, dict) else None
        if kind == "text":
            return None
        if kind == "json_object":
            return {"type": "object"}
        if kind != "json_schema" or not isinstance(form, dict):
            raise wrong_value("text.format.type", kind, ("text", "json_object", "json_schema"))
        schema = form.get("schema")
        if not isinstance(schema, dict):
            raise missing("text.format.schema")
        schema_format: JsonObject = {
            name: form[name] for name in ("type", "name", "description", "strict") if name in form
        }
        put(self.options, "text.format", schema_format)
        return schema

    def _include(self) -> None:
        value = self.body.get("include")
        if value is None:
            return
        value = a_list(value, "include")
        if value:
            self.options["include"] = value
        if _DATA in value or self.body.get("top_logprobs"):
            self.losses.parameter("the request for probabilities of tokens")

    def _user(self) -> str | None:
        user = self._str("user")
        identified = self._str("safety_identifier")
        if user is not None and identified is not None:
            self.options["user"] = user
        return identified if identified is not None else user

    def _other_fields(self) -> None:
        for name, value in self.body.items():
            if name in _READ or value is None:
                continue
            self.options[name] = value
            harmless = _WITHOUT_LOSS.get(name, ())
            if harmless is not None and value not in harmless:
                self.losses.parameter(name)

    # --- The choice of tools ---

    def _tool_choice(self, choice: Json) -> ToolChoice | None:
        if choice is None:
            return None
        match choice:
            case "required" if not self.tools.definitions:
                self.options["tool_choice"] = choice
                self.losses.parameter("tool_choice", "the request's tools run at OpenAI")
                return None
            case "auto" | "none" | "required":
                return ToolChoice(choice)
            case _:
                pass
        kind = choice.get("type") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(kind, str):
            raise wrong_value("tool_choice", choice, ("none", "auto", "required"))
        allowed = choice.get("tools")
        if kind == "allowed_tools" and isinstance(allowed, list):
            return self._allowed(choice.get("mode"), allowed)
        if kind in (FUNCTION, CUSTOM) or kind in HOST_TOOLS:
            name = self._chosen(choice)
            if name is None:
                missing_name = choice.get("name", kind)
                raise BadRequest(
                    f"Tool choice {missing_name!r} not found in 'tools' parameter.", param="tool_choice"
                )
            return ToolChoice("named", name)
        self.options["tool_choice"] = choice
        self.losses.parameter(f"the tool choice {kind!r}", "the tool runs at OpenAI")
        return None

    def _chosen(self, choice: JsonObject) -> str | None:
        kind, name, namespace = choice.get("type"), choice.get("name"), choice.get("namespace")
        if not isinstance(kind, str):
            return None
        if kind in HOST_TOOLS:
            return self.tools.named(kind, kind)
        if kind not in (FUNCTION, CUSTOM) or not isinstance(name, str):
            return None
        return self.tools.named(kind, name, namespace if isinstance(namespace, str) else None)

    def _allowed(self, mode: Json, allowed: Sequence[Json]) -> ToolChoice:
        """The tool choice for a list of allowed tools. Other tools are removed, because no other wire has such a
        list.
        """
        names = [self._chosen(tool) for tool in allowed if isinstance(tool, dict)]
        found = [name for name in names if name is not None]
        if len(found) < len(self.tools.definitions):
            self.tools.keep_only(found)
            self.losses.changed("other protocols don't get the tools that tool_choice does not allow")
        if len(found) < len(allowed):
            self.losses.parameter("a tool that tool_choice allows", "it runs at OpenAI")
        required = mode == "required" and bool(found)
        return ToolChoice("required" if required else "auto" if found else "none")

    # --- The client and its conversation ---

    def _kept_headers(self) -> dict[str, str]:
        return {
            name: value
            for name, value in self.headers.items()
            if name in _KEPT_HEADERS or name.startswith(_KEPT_PREFIX)
        }

    def _session(self) -> str | None:
        client, metadata, conversation = map(self.body.get, ("client_metadata", "metadata", "conversation"))
        return first_text(
            *(self.headers.get(name) for name in SESSION_HEADERS),
            *(holder.get("session_id") for holder in (client, metadata) if isinstance(holder, dict)),
            self.body.get("prompt_cache_key"),
            conversation.get("id") if isinstance(conversation, dict) else conversation,
        )

    def _writer_options(self) -> JsonObject:
        options: JsonObject = {name: self.body[name] for name in _OF_WRITER if self.body.get(name) is not None}
        if self.tools.wire:
            options["tools"] = msgspec.to_builtins(self.tools.wire)
        return options


# --- Stored conversations ---


def input_items(body: JsonObject) -> list[Json]:
    value = body.get("input")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    return list(value) if isinstance(value, list) else []


def with_tools_of(items: Sequence[Json], body: JsonObject) -> JsonObject:
    """A body that includes the tools which earlier items added to the conversation."""
    lists = [item.get("tools") for item in items if isinstance(item, dict) and brings_tools(item)]
    found = [tool for tools in lists if isinstance(tools, list) for tool in tools]
    listed = body.get("tools")
    return {**body, "tools": [*(listed if isinstance(listed, list) else ()), *found]} if found else body


def joined(
    previous_input_items: Sequence[Json], previous_output_items: Sequence[Json], body: JsonObject
) -> JsonObject:
    """Make the body of a request that continues a stored response. Its input is the whole conversation.

    References to stored items are left out, because the items themselves are included. The instructions come from
    the body, as at OpenAI.
    """
    items = [*previous_input_items, *previous_output_items]
    stored = {str(item.get("id")) for item in items if isinstance(item, dict)}
    items += [item for item in input_items(body) if not _is_of(item, stored)]
    rest = {name: value for name, value in body.items() if name not in ("input", "previous_response_id")}
    return {**rest, "input": items}


def _is_of(item: Json, stored: Collection[str]) -> bool:
    return isinstance(item, dict) and is_reference(item) and str(item.get("id")) in stored
