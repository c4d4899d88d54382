"""`generate_object`: returns a reply as an object that follows a schema, or raises an error with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Generic, Literal, NoReturn, TypeAlias, TypeVar, Unpack, cast

import msgspec

from callboard.adapters import CanonicalResponse, ContentBlock, Message, StopReason
from callboard.adapters.requests.schemas import normalise_schema
from callboard.adapters.requests.strict_schemas import without_added_nulls
from callboard.bus import CallboardError, Cost
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage

from ..conversation.results import GenerateResult, StepResult, plain
from ..conversation.turn import Turn, run_turn
from ..routing.model_choice import Model
from ..runtime.runtime import Runtime
from ..schema_checks import check, check_schema, convert
from ..type_schema import SchemaError, inline_root, json_schema, refers_to
from .arguments import Arguments, new_turn
from .partial_json import PartialJson

# --- The requested schema ---

T = TypeVar("T")

_WRAPPED = "value"


class ObjectSchema(Generic[T]):
    """A type or a JSON Schema that a reply must follow.

    Providers accept only an object at the schema's root. Any other schema is wrapped in an object with the member
    ``value``, and the reply is unwrapped.

    Args:
        of: A type, a hint, or a JSON Schema as a dict.

    Raises:
        SchemaError: It is neither a schema nor a type with one.
    """

    def __init__(self, of: object) -> None:
        schema = json_schema(of)
        check_schema(schema)
        if not _is_object(schema):
            schema = inline_root(normalise_schema(schema))
        self._type = None if isinstance(of, Mapping) else of
        self._is_wrapped = not _is_object(schema)
        self.sent = _wrapped(schema) if self._is_wrapped else schema

    def read(self, reply: Json) -> T:
        """The object of a whole reply.

        If an optional member must not be null, a null is left out, because models often write it.
        """
        value = cast("Json", self.unwrapped(self._checked(reply)))
        return cast("T", value if self._type is None else convert(value, self._type))

    def _checked(self, reply: Json) -> Json:
        try:
            check(reply, self.sent)
        except ValueError:
            if self._is_wrapped and self._is_bare(reply):
                return {_WRAPPED: reply}
            cleaned = without_added_nulls(reply, self.sent) if isinstance(reply, dict) else reply
            if cleaned == reply:
                raise
            check(cleaned, self.sent)
            return cleaned
        return reply

    def bare(self, text: str) -> Json | msgspec.UnsetType:
        """The value in a text without the wrapper object; UNSET if there is no value.

        The value is a list in the text, or the whole text as a string.
        """
        if not self._is_wrapped:
            return msgspec.UNSET
        start, end = text.find("["), text.rfind("]")
        if 0 <= start < end:
            try:
                found: Json = msgspec.json.decode(text[start : end + 1])
            except msgspec.DecodeError:
                return msgspec.UNSET
            return found if self._is_bare(found) else msgspec.UNSET
        plain = text.strip()
        is_text = plain and plain[0] not in '{["`'
        return plain if is_text and self._is_bare(plain) else msgspec.UNSET

    def _is_bare(self, reply: Json) -> bool:
        """Whether a reply is the value itself, because the model left the wrapper out."""
        try:
            check({_WRAPPED: reply}, self.sent)
        except ValueError:
            return False
        return True

    def unwrapped(self, reply: Json) -> Json | msgspec.UnsetType:
        """The caller's value in a reply, or in the start of a reply; UNSET if no part of it has arrived yet.

        A list, a number or a text is the value itself: the model left the wrapper out.
        """
        if not self._is_wrapped:
            return reply
        return reply.get(_WRAPPED, msgspec.UNSET) if isinstance(reply, dict) else reply


def _is_object(schema: JsonObject) -> bool:
    return schema.get("type") == "object" and not {"anyOf", "oneOf", "allOf", "$ref"} & schema.keys()


def _wrapped(schema: JsonObject) -> JsonObject:
    if refers_to(schema, "#"):
        raise SchemaError(
            "this schema refers to itself as '#', which works only for an object at the root. Give it a "
            "name in $defs and refer to that name"
        )
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    wrapped: JsonObject = {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
        "additionalProperties": False,
    }
    return {**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped


# --- The check of a reply ---


NoObjectReason: TypeAlias = Literal["truncated", "refused", "not_json", "invalid"]
"""Why there is no object, see `NoObjectGeneratedError`."""


class NoObjectGeneratedError(CallboardError):
    """The model replied, but the reply is not the requested object.

    Args:
        reason: ``truncated``: the reply reached max_output_tokens, or the window's end. ``refused``: by the model
            or a filter. ``not_json``: the reply is not JSON. ``invalid``: the JSON doesn't follow the schema.
        detail: The problem, with the JSON path or the position.
        text: The text of the last reply.
        steps: The replies.
        usage: The tokens of all replies together.
        cost: The cost of all replies together.
    """

    def __init__(
        self,
        reason: NoObjectReason,
        detail: str,
        *,
        text: str,
        steps: Sequence[StepResult],
        usage: TokenUsage,
        cost: Cost,
    ) -> None:
        super().__init__(f"{_SAID[reason]}: {detail}")
        self.reason: NoObjectReason = reason
        self.detail = detail
        self.text = text
        self.steps = tuple(steps)
        self.usage = usage
        self.cost = cost

    @property
    def response(self) -> CanonicalResponse:
        """The last reply."""
        return self.steps[-1].response


_SAID: dict[NoObjectReason, str] = {
    "truncated": "the reply was cut off before its object was complete. Increase max_output_tokens",
    "refused": "the model refused",
    "not_json": "the reply is not JSON",
    "invalid": "the reply does not follow the schema",
}


class NotTheObject(Exception):
    """A reply that is not the object.

    Args:
        reason: As in `NoObjectGeneratedError`.
        detail: As in `NoObjectGeneratedError`.
        repairable: Whether it is useful to call the model again. A reply that was too long would be too long
            again, and a refusal is an answer.
    """

    def __init__(self, reason: NoObjectReason, detail: str, *, repairable: bool = True) -> None:
        super().__init__(detail)
        self.reason: NoObjectReason = reason
        self.detail = detail
        self.repairable = repairable and reason in ("not_json", "invalid")


def read_reply(response: CanonicalResponse, schema: ObjectSchema[T], *, may_repair: bool) -> tuple[T, bool]:
    """Read the object in a reply. Returns also whether its text had to be repaired."""
    if response.stop_reason in (StopReason.REFUSAL, StopReason.CONTENT_FILTER):
        raise NotTheObject("refused", response.text or response.raw_stop_reason or "without a text")
    is_cut_off = response.stop_reason is StopReason.MAX_TOKENS
    repaired = False
    try:
        reply = read_json(response.text)
    except ValueError as error:
        if not is_cut_off and (bare := schema.bare(response.text)) is not msgspec.UNSET:
            return schema.read(bare), False
        ends_early = is_cut_off and isinstance(error, _Unfinished)
        reply = _repaired(response.text, is_cut_off) if may_repair else None
        if reply is None:
            raise NotTheObject("truncated" if ends_early else "not_json", str(error)) from error
        repaired = True
    try:
        return schema.read(reply), repaired
    except ValueError as error:
        bare = msgspec.UNSET if is_cut_off else schema.bare(response.text)
        if isinstance(bare, list):  # the object was an item of the list
            return schema.read(bare), False
        raise NotTheObject("truncated" if repaired and is_cut_off else "invalid", str(error)) from error


class _Unfinished(ValueError):
    """The JSON is valid so far, but it is incomplete or has not started."""


def read_json(text: str) -> Json:
    """Read the object in a text. It may be in a code fence or between other words, and may follow reasoning."""
    try:
        return _strictly(text)
    except ValueError:
        text = after_reasoning(text)
        machine = PartialJson(embedded=True, opening="{")
        machine.feed(text)
        if machine.error is not None:
            raise ValueError(machine.error) from None
        machine.close()
        if machine.error is not None:
            raise _Unfinished(machine.error) from None
        return machine.value


def after_reasoning(text: str) -> str:
    """A text without the reasoning that some servers leave in it, up to `</think>`.

    An object within the reasoning is not an answer. If the reasoning is unfinished, the result is empty.
    """
    before, end, answer = text.rpartition(THINK_END)
    if text.lstrip().startswith(THINK_START):
        return answer if end else ""
    return answer if end and "{" in answer and not _in_an_object(before) else text


THINK_START, THINK_END = "<think>", "</think>"
"""The marks around reasoning in a text."""


def _in_an_object(text: str) -> bool:
    """Whether a text ends within a string of a JSON object. If so, a mark that follows is part of that string."""
    machine = PartialJson(embedded=True, opening="{")
    machine.feed(text)
    return machine.in_string


def _repaired(text: str, is_cut_off: bool) -> Json:
    try:
        return repair(text, cut_off=is_cut_off)
    except ValueError:
        return None


def _strictly(text: str) -> Json:
    try:
        value: Json = json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def repair(text: str, *, cut_off: bool = False) -> Json:
    """Read the object in nearly valid JSON.

    It may have text and code fences around it, extra commas, line breaks in strings, and brackets that were not
    closed.
    """
    machine = PartialJson(embedded=True, opening="{", lenient=True)
    machine.feed(after_reasoning(text))
    machine.close(cut_off=cut_off)
    if machine.error is not None:
        raise ValueError(machine.error)
    return machine.value


class ObjectArguments(Arguments, total=False):
    """The arguments of `generate_object` and `stream_object`, besides model, prompt and schema."""

    max_reasks: int
    """The maximum number of times that an invalid reply is returned to the model with the problem; 0 by default.
    Each time is another call.
    """
    repair: bool
    """Whether to repair nearly valid JSON, for example an extra comma or a missing bracket. A truncated reply is
    also accepted if it follows the schema.
    """


class ObjectResult(GenerateResult, Generic[T], frozen=True, kw_only=True):
    """The result of `generate_object`.

    `text` is the JSON of the last reply. `steps` has all replies, including the invalid ones.
    """

    output: T
    """The object."""
    repaired: bool = False
    """Whether the text was invalid JSON and was repaired."""

    def to_dict(self) -> JsonObject:
        """The result as plain values, as in `GenerateResult.to_dict`, with the object as ``output``."""
        return {"output": plain(self.output), **super().to_dict()}


class ObjectTask(Generic[T]):
    """A request for one object. It has one or more turns in sequence. The object is read from the last one.

    Args:
        runtime: The engine's shared parts.
        model: As in `generate`.
        prompt: As in `generate`.
        schema: As in `generate_object`.
        streamed: Whether the replies are streamed.
        max_reasks: As in `ObjectArguments`.
        repair: As in `ObjectArguments`.
        arguments: The other arguments.

    Raises:
        CallboardError: `output_schema` was passed in addition to the schema.
        SchemaError: The schema is invalid.
    """

    def __init__(
        self,
        runtime: Runtime,
        model: Model | None,
        prompt: str | Sequence[ContentBlock] | None,
        schema: object,
        *,
        streamed: bool,
        max_reasks: int = 0,
        repair: bool = False,
        **arguments: Unpack[Arguments],
    ) -> None:
        if arguments.get("output_schema") is not None:
            raise CallboardError("generate_object needs schema=, not output_schema=")
        self.runtime = runtime
        self.schema: ObjectSchema[T] = ObjectSchema(schema)
        object_arguments: Arguments = {"schema_mode": "auto", **arguments, "output_schema": self.schema.sent}
        self.first = new_turn(runtime, model, prompt, streamed=streamed, **object_arguments)
        self._turns: list[Turn] = []
        self.may_repair = repair
        self.has_tools = bool(arguments.get("tools"))
        self._reasks = max_reasks

    def judge(self, turn: Turn) -> ObjectResult[T] | Turn:
        """The object of an ended turn, or the next turn to run."""
        self._turns.append(turn)
        response = turn.steps[-1].response
        try:
            if turn.status != "completed":
                raise NotTheObject("not_json", _open_calls(turn), repairable=False)
            output, repaired = read_reply(response, self.schema, may_repair=self.may_repair)
        except NotTheObject as unfit:
            if unfit.repairable and self._reasks > 0:
                self._reasks -= 1
                return turn.followed_by(Message.user(_correction(unfit)))
            steps = self._steps()
            raise NoObjectGeneratedError(
                unfit.reason,
                unfit.detail,
                text=response.text,
                steps=steps,
                usage=reduce(add, (step.usage for step in steps)),
                cost=self._cost(),
            ) from unfit
        return ObjectResult(
            output=output,
            repaired=repaired,
            steps=self._steps(),
            messages=turn.messages,
            status=turn.status,
            total_cost=self._cost(),
            cost_sum=reduce(add, (turn.spending.sum for turn in self._turns)),
            undelivered=turn.undelivered,
        )

    def _steps(self) -> tuple[StepResult, ...]:
        return tuple(step for turn in self._turns for step in turn.steps)

    def _cost(self) -> Cost:
        return reduce(add, (turn.cost for turn in self._turns))


def _open_calls(turn: Turn) -> str:
    names = ", ".join(call.name for call in turn.steps[-1].tool_uses)
    return (
        f"it calls {names}, and the turn ended with {turn.status}; set max_tool_rounds, and pass tools "
        f"with handlers"
    )


def _correction(unfit: NotTheObject) -> str:
    fault = "is not JSON" if unfit.reason == "not_json" else "does not follow the schema"
    return f"Your answer {fault}: {unfit.detail}\nGive the whole corrected JSON object, and nothing else."


async def generate_object_on(task: ObjectTask[T]) -> ObjectResult[T]:
    turn = task.first
    while True:
        await run_turn(turn)
        judged = task.judge(turn)
        if isinstance(judged, ObjectResult):
            return judged
        turn = judged
