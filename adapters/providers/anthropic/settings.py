"""Sampling, effort, thinking and schemas of the Messages API. Pure.

A setting that the model refuses by the table in `data` is dropped with a warning. Unlisted models get all settings
except temperature and top_p, which no newer Claude supports.
"""

from __future__ import annotations

from collections.abc import Iterator

from callboard.bus.errors import CapabilityError, UnsupportedToolChoiceError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning

from ...contract import CanonicalRequest
from ...requests.schemas import describe, describe_constraints, merge_all_of, normalise_schema, remembered
from ...requests.settings import changed, dropped, nearest_effort, short_id, write_settings
from ...requests.strict_schemas import NotStrict
from .data import BUDGETS, LEAST_BUDGET, Model, is_newer_claude

_WIRE_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_LONGEST_USER = 256
_PATHS = {"temperature": "temperature", "top_p": "top_p", "user": "metadata.user_id"}


class Tuning:
    def __init__(self, request: CanonicalRequest, provider: str, model: Model | None, extra: JsonObject) -> None:
        self.request = request
        self.provider = provider
        self.model = model
        self.extra = extra
        self.warnings: list[CallWarning] = []

    def write(self, body: JsonObject) -> None:
        """Write the tuning. Raises CapabilityError or UnsupportedToolChoiceError for a refused schema or tool
        choice.
        """
        self._stops(body)
        effort = self._effort()
        thinking = self._thinking(body)
        if thinking is not None:
            body["thinking"] = thinking
        self._sampling(body)
        if effort is not None:
            body["output_config"] = {"effort": effort}
        if self.request.output_schema is not None and self.model is not None and not self.model.structured:
            raise CapabilityError(f"{self.request.wire_model} does not support output schemas")

    def _stops(self, body: JsonObject) -> None:
        stops = [stop for stop in self.request.stop_sequences if stop.strip()]
        if len(stops) < len(self.request.stop_sequences):
            what = "stop sequences with only white space are not accepted"
            self.warnings.append(CallWarning(WarningCode.STOP_SEQUENCE_DROPPED, what))
        if stops:
            body["stop_sequences"] = list(stops)

    # --- Reasoning ---

    def _effort(self) -> str | None:
        requested = self.request.reasoning_effort
        thinking = self.extra.get("thinking")
        if requested is None or (isinstance(thinking, dict) and "budget_tokens" in thinking):
            return None  # the host's own budget takes precedence
        can = self.request.capabilities
        if self.model is None and can is not None and not can.supports_thinking:
            if requested != "none":
                self.warnings.append(
                    dropped("reasoning_effort", self.provider, f"{self.request.wire_model} can't reason")
                )
            return None
        efforts = _WIRE_EFFORTS if self.model is None else self.model.efforts
        if not efforts or (requested == "none" and self._can_be_off()):
            return None
        effort = nearest_effort(requested, efforts)
        if effort != requested:
            self.warnings.append(changed("reasoning_effort", requested, effort, "the nearest value of the model"))
        return effort

    def _can_be_off(self) -> bool:
        return self.model is not None and ("disabled" in self.model.thinking or not self.model.thinking)

    def _thinking(self, body: JsonObject) -> JsonObject | None:
        """The thinking for an effort; None leaves it to the model or the host."""
        effort, model = self.request.reasoning_effort, self.model
        if model is None or effort is None or "thinking" in self.extra:
            return None
        if effort == "none":
            return {"type": "disabled"} if model.thinks_unasked and self._can_be_off() else None
        if "adaptive" in model.thinking:
            return None if model.thinks_unasked else {"type": "adaptive"}
        if "enabled" not in model.thinking:
            self.warnings.append(
                dropped("reasoning_effort", self.provider, f"{self.request.wire_model} can't reason")
            )
            return None
        return self._budget(effort, body)

    def _budget(self, effort: str, body: JsonObject) -> JsonObject | None:
        """Thinking with a budget of at most half the reply's limit."""
        why = None
        limit = self.request.max_output_tokens
        choice = body.get("tool_choice")
        if isinstance(choice, dict) and choice["type"] in ("any", "tool"):
            why = "the model can't think while a tool call is forced"
        elif limit <= LEAST_BUDGET:
            why = f"it needs more than {LEAST_BUDGET} output tokens"
        elif _mid_loop_without_thinking(body["messages"]):
            why = "the open tool calls were made without the model's own thinking"
        if why is not None:
            self.warnings.append(dropped("reasoning_effort", self.provider, why))
            return None
        return {"type": "enabled", "budget_tokens": max(LEAST_BUDGET, min(BUDGETS[effort], limit // 2))}

    # --- Sampling ---

    def _sampling(self, body: JsonObject) -> None:
        request = self.request
        self.warnings += write_settings(body, request, _PATHS, self.provider, refused=self._refused(body))
        metadata = body.get("metadata")
        if request.user is not None and isinstance(metadata, dict):
            metadata["user_id"] = short_id(request.user, _LONGEST_USER)
        if request.temperature is not None and request.temperature > 1.0 and "temperature" in body:
            body["temperature"] = 1.0
            what = f"temperature {request.temperature:g} was lowered to the highest, 1"
            self.warnings.append(CallWarning(WarningCode.TEMPERATURE_LOWERED, what))

    def _refused(self, body: JsonObject) -> dict[str, str]:
        if self.request.temperature is None and self.request.top_p is None:
            return {}
        name = self.request.wire_model
        if self.model is None:
            why = f"{name} is new, and new models reject it"
            return dict.fromkeys(("temperature", "top_p"), why) if is_newer_claude(name) else {}
        if self.model.sampling == "none":
            return dict.fromkeys(("temperature", "top_p"), f"{name} rejects it")
        thinking = self.extra.get("thinking", body.get("thinking"))
        if isinstance(thinking, dict) and thinking.get("type") in ("adaptive", "enabled", "between_tools"):
            return dict.fromkeys(("temperature", "top_p"), f"{name} rejects it while thinking")
        if self.model.sampling == "one" and self.request.temperature is not None:
            return {"top_p": f"{name} accepts it or temperature, not both"}
        return {}


def check_choice(request: CanonicalRequest, model: Model | None, thinking: Json) -> None:
    if request.tool_choice is None or request.tool_choice.mode not in ("required", "named") or model is None:
        return
    if not model.forced_tools:
        raise UnsupportedToolChoiceError(f"{request.wire_model} can't be forced to call a tool")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        raise UnsupportedToolChoiceError(
            f"{request.wire_model} can't be forced to call a tool while it thinks with a budget"
        )


def output_limit(request: CanonicalRequest, model: Model | None, provider: str) -> tuple[int, list[CallWarning]]:
    requested = request.max_output_tokens
    limit = None if model is None else model.max_output
    if limit is None or requested <= limit:
        return requested, []
    return limit, [
        changed("max_output_tokens", requested, limit, f"{provider} allows no more for {request.wire_model}")
    ]


def _mid_loop_without_thinking(messages: Json) -> bool:
    """Whether the request has results for calls from a message that doesn't start with thinking."""
    match messages:
        case [*_, {"content": [{"type": kind}, *_]}, {"content": [{"type": "tool_result"}, *_]}]:
            return kind not in ("thinking", "redacted_thinking")
        case _:
            return False


# --- Schemas ---

_KEPT = frozenset({"type", "title", "enum", "const", "required"})
_WITHOUT_MEANING = frozenset({"$id", "deprecated", "readOnly", "writeOnly", "additionalProperties"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_DEFINITION = "#/$defs/"


@remembered
def fit_schema(schema: JsonObject) -> JsonObject | str:
    """The schema to send, or the place and reason why there is none."""
    try:
        return _Fitter(normalise_schema(schema)).fit_root()
    except NotStrict as reason:
        return str(reason)


class _Fitter:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        definitions = root.get("$defs")
        self._definitions: JsonObject = definitions if isinstance(definitions, dict) else {}

    def fit_root(self) -> JsonObject:
        self._refuse_recursion()
        fitted = self._fit(self._root, "$")
        if self._definitions:
            fitted["$defs"] = {
                name: self._fit(value, f"$.$defs.{name}") for name, value in self._definitions.items()
            }
        return fitted

    def _fit(self, value: Json, path: str) -> JsonObject:
        if not isinstance(value, dict) or not value:
            raise NotStrict(f"{path}: a schema without a type, which matches any value")
        schema = merge_all_of(value) if "allOf" in value else value
        if "$ref" in schema:
            return self._reference(schema, path)
        fitted: JsonObject = {}
        described: JsonObject = {}
        for name, inner in schema.items():
            if _is_kept(name, inner):
                fitted[name] = inner
            elif name in ("anyOf", "oneOf") and isinstance(inner, list):
                fitted["anyOf"] = [self._fit(part, f"{path}.anyOf[{at}]") for at, part in enumerate(inner)]
            elif name not in ("properties", "items", "description", "$defs", *_WITHOUT_MEANING):
                described[name] = inner
        self._write_shape(schema, fitted, path)
        if isinstance(description := schema.get("description"), str) and description:
            fitted["description"] = description
        return describe(fitted, describe_constraints(described))

    def _write_shape(self, schema: JsonObject, fitted: JsonObject, path: str) -> None:
        kind = schema.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        if "object" in kinds or "properties" in schema:
            self._write_object(schema, fitted, path)
        if "array" in kinds:
            if "prefixItems" in schema:
                raise NotStrict(f"{path}: an array with a schema for each position")
            fitted["items"] = self._fit(schema.get("items"), f"{path}.items")
        if not fitted.keys() & {"type", "properties", "anyOf", "enum", "const"}:
            raise NotStrict(f"{path}: a schema without a type, which matches any value")

    def _write_object(self, schema: JsonObject, fitted: JsonObject, path: str) -> None:
        properties = schema.get("properties")
        free = schema.get("additionalProperties", "properties" not in schema)
        if isinstance(free, dict) or "patternProperties" in schema or (free is True and not properties):
            raise NotStrict(f"{path}: an object with free keys")
        fitted["properties"] = {
            name: self._fit(inner, f"{path}.properties.{name}")
            for name, inner in (properties if isinstance(properties, dict) else {}).items()
        }
        fitted["additionalProperties"] = False

    def _reference(self, schema: JsonObject, path: str) -> JsonObject:
        """Write a reference. A reference allows no other keywords next to it, so they are moved to a schema around
        it.
        """
        target = schema["$ref"]
        if not isinstance(target, str) or target.removeprefix(_DEFINITION) not in self._definitions:
            raise NotStrict(f"{path}: a reference to {target!r}, which is not a definition of the schema")
        ignored = {"$ref", "$defs", "description", "title", *_WITHOUT_MEANING}
        described = {name: inner for name, inner in schema.items() if name not in ignored}
        description = schema.get("description")
        around = describe(
            {"description": description} if isinstance(description, str) and description else {},
            describe_constraints(described),
        )
        return {**around, "anyOf": [{"$ref": target}]} if around else {"$ref": target}

    def _refuse_recursion(self) -> None:
        for name in self._definitions:
            targets: set[str] = set()
            waiting = [name]
            while waiting:
                for target in _references(self._definitions.get(waiting.pop())):
                    if target == name:
                        raise NotStrict(f"$.$defs.{name}: a definition that contains itself")
                    if target not in targets:
                        targets.add(target)
                        waiting.append(target)


def _is_kept(name: str, value: Json) -> bool:
    match name:
        case "enum":
            return isinstance(value, list) and not any(isinstance(entry, dict | list) for entry in value)
        case "const":
            return not isinstance(value, dict | list)
        case "format":
            return value in _FORMATS
        case "minItems":
            return value in (0, 1)
        case _:
            return name in _KEPT


def _references(value: Json) -> Iterator[str]:
    if isinstance(value, list):
        for part in value:
            yield from _references(part)
    elif isinstance(value, dict):
        if isinstance(target := value.get("$ref"), str):
            yield target.removeprefix(_DEFINITION)
        for inner in value.values():
            yield from _references(inner)
