"""Whether a reply is the object that was wanted, and if not, why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, NoReturn, TypeAlias, TypeVar

import msgspec

from callboard.adapters import CanonicalResponse, StopReason
from callboard.bus import CallboardError, Cost
from callboard.bus.values.json import Json
from callboard.bus.values.usage import TokenUsage

from ..conversation.results import StepResult
from .partial_json import PartialJson
from .schema import ObjectSchema

T = TypeVar("T")

NoObjectReason: TypeAlias = Literal["truncated", "refused", "not_json", "invalid"]
"""Why there is no object, see `NoObjectGeneratedError`."""


class NoObjectGeneratedError(CallboardError):
    """The model replied, but not with such an object.

    Args:
        reason: ``truncated``: the reply reached max_output_tokens, or the window's end. ``refused``: by the model
            or a filter. ``not_json``: the reply is no JSON. ``invalid``: the JSON doesn't follow the schema.
        detail: The fault, with the JSON path or the character.
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
    "truncated": "the reply was cut off before its object was whole; raise max_output_tokens",
    "refused": "the model refused",
    "not_json": "the reply is not JSON",
    "invalid": "the reply does not follow the schema",
}


class Unfit(Exception):
    """A reply that is not the object.

    Args:
        reason: As in `NoObjectGeneratedError`.
        detail: As in `NoObjectGeneratedError`.
        may_be_mended: Whether it may make sense to ask again. A reply that was too long would be so again, and a
            refusal is an answer.
    """

    def __init__(self, reason: NoObjectReason, detail: str, *, may_be_mended: bool = True) -> None:
        super().__init__(detail)
        self.reason: NoObjectReason = reason
        self.detail = detail
        self.may_be_mended = may_be_mended and reason in ("not_json", "invalid")


def read_reply(response: CanonicalResponse, schema: ObjectSchema[T], *, may_repair: bool) -> tuple[T, bool]:
    """The object in a reply, and whether its text had to be repaired.

    Raises:
        Unfit: The reply is no such object.
    """
    if response.stop_reason in (StopReason.REFUSAL, StopReason.CONTENT_FILTER):
        raise Unfit("refused", response.text or response.raw_stop_reason or "without a word")
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
            raise Unfit("truncated" if ends_early else "not_json", str(error)) from error
        repaired = True
    try:
        return schema.read(reply), repaired
    except ValueError as error:
        bare = msgspec.UNSET if is_cut_off else schema.bare(response.text)
        if isinstance(bare, list):  # the object was a part of it
            return schema.read(bare), False
        raise Unfit("truncated" if repaired and is_cut_off else "invalid", str(error)) from error


class _Unfinished(ValueError):
    """The only fault of the JSON is that it ends too early, or has not begun."""


def read_json(text: str) -> Json:
    """The object in a text, which may stand in a code fence or amid other words, after any reasoning.

    Raises:
        ValueError: There is none.
    """
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
    """What a text says after its reasoning, which some servers leave in it, up to a `</think>`.

    An object that the model wrote while it reasoned is no answer. Reasoning that never ended leaves nothing.
    """
    before, end, answer = text.rpartition(THINK_END)
    if text.lstrip().startswith(THINK_START):
        return answer if end else ""
    return answer if end and "{" in answer and not _in_an_object(before) else text


THINK_START, THINK_END = "<think>", "</think>"
"""The marks around reasoning in a text."""


def _in_an_object(text: str) -> bool:
    """Whether a text ends within a string of a JSON object, so that a mark after it is the string's."""
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
    raise ValueError(f"{constant} is no JSON")


def repair(text: str, *, cut_off: bool = False) -> Json:
    """The object in nearly valid JSON.

    It is read as it was meant: with text and code fences around it, commas too many, line breaks in strings, and
    brackets that were not closed.

    Args:
        text: The text.
        cut_off: Whether the text was truncated, so that a number at its end may lack digits. Such a number is left
            out.

    Raises:
        ValueError: That is not enough to read it.
    """
    machine = PartialJson(embedded=True, opening="{", lenient=True)
    machine.feed(after_reasoning(text))
    machine.close(cut_off=cut_off)
    if machine.error is not None:
        raise ValueError(machine.error)
    return machine.value
