"""`generate_object`: a reply as an object that follows a schema, or an error that says why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Generic, TypeVar, Unpack

from callboard.adapters import ContentBlock, Message
from callboard.bus import CallboardError, Cost
from callboard.bus.values.json import JsonObject

from ..conversation.results import GenerateResult, StepResult
from ..conversation.turn import Turn, own
from ..generation.arguments import Arguments, new_turn
from ..presented import plain
from ..routing.model_choice import Model
from ..runtime.runtime import Runtime
from .reply import NoObjectGeneratedError, Unfit, read_reply
from .schema import ObjectSchema

T = TypeVar("T")


class ObjectArguments(Arguments, total=False):
    """The arguments of `generate_object` and `stream_object` besides model, prompt and schema."""

    max_reasks: int
    """The number of times that a reply which is no JSON, or doesn't follow the schema, is shown to the model with
    its fault, to be given anew. Each is a further call; by default 0."""
    repair: bool
    """Whether nearly valid JSON is read as it was meant, with a comma too many or a bracket too few. A truncated
    reply is read, too, if its part follows the schema."""


class ObjectResult(GenerateResult, Generic[T], frozen=True, kw_only=True):
    """The result of `generate_object`.

    `text` is the JSON of the last reply. `steps` are all replies, also those after which the model was asked
    again.
    """

    output: T
    """The object."""
    repaired: bool = False
    """Whether the text is no valid JSON, and was read as it was meant."""

    def to_dict(self) -> JsonObject:
        """The result as plain values, as `GenerateResult.to_dict`, and the object as ``output``."""
        return {"output": plain(self.output), **super().to_dict()}


class ObjectTask(Generic[T]):
    """One object to be had: its turns, one after the other, and the object that is read from the last.

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
        CallboardError: `output_schema` is given besides the schema.
        SchemaError: The schema is none.
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
            raise CallboardError("generate_object takes schema=, not output_schema=")
        self.runtime = runtime
        self.schema: ObjectSchema[T] = ObjectSchema(schema)
        asked: Arguments = {"schema_mode": "auto", **arguments, "output_schema": self.schema.sent}
        self.first = new_turn(runtime, model, prompt, streamed=streamed, **asked)
        self._turns: list[Turn] = []
        self.may_repair = repair
        self.has_tools = bool(arguments.get("tools"))
        self._reasks = max_reasks

    def judge(self, turn: Turn) -> ObjectResult[T] | Turn:
        """The object of a turn that is over, or the turn to run next.

        Raises:
            NoObjectGeneratedError: The reply is no such object, and the model isn't asked again.
        """
        self._turns.append(turn)
        response = turn.steps[-1].response
        try:
            if turn.status != "completed":
                raise Unfit("not_json", _open_calls(turn), may_be_mended=False)
            output, repaired = read_reply(response, self.schema, may_repair=self.may_repair)
        except Unfit as unfit:
            if unfit.may_be_mended and self._reasks > 0:
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
        f"it calls {names}, and the turn ended with {turn.status}; give max_tool_rounds, and tools that can be run"
    )


def _correction(unfit: Unfit) -> str:
    fault = "is not JSON" if unfit.reason == "not_json" else "does not follow the schema"
    return f"Your answer {fault}: {unfit.detail}\nGive the whole corrected JSON object, and nothing else."


async def generate_object_on(task: ObjectTask[T]) -> ObjectResult[T]:
    """The object of a task; see `Engine.generate_object`."""
    turn = task.first
    while True:
        await own(turn, await task.runtime.host.start_turn(turn))
        judged = task.judge(turn)
        if isinstance(judged, ObjectResult):
            return judged
        turn = judged
