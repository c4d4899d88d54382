"""Replies that are data, as methods of the engine. The first call imports their code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from callboard.adapters import ContentBlock
from callboard.bus.values.base import Json

from ..routing.model_choice import Model
from ..runtime.runtime import Runtime

if TYPE_CHECKING:
    from .generate import ObjectArguments, ObjectResult
    from .stream import ObjectStream

T = TypeVar("T")


class ObjectMethods:
    """The methods of `Engine` for replies that are data."""

    _runtime: Runtime

    @overload
    async def generate_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: type[T],
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectResult[T]: ...
    @overload
    async def generate_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: Mapping[str, Any],
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectResult[Json]: ...
    @overload
    async def generate_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: object,
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectResult[Any]: ...
    async def generate_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: object,
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectResult[Any]:
        """Ask a model for an object of a type: `result.output`.

        A model that accepts schemas gets the schema. Any other gets a tool that it must call, or an instruction.
        The reply is always checked here, too. The exceptions of `generate` are raised here, too.

        Args:
            model: As in `generate`.
            prompt: As in `generate`.
            schema: A type (a msgspec Struct, dataclass, TypedDict, pydantic or attrs class, or a hint such as
                ``list[Person]``), or a JSON Schema as a dict, for which the output is plain JSON.
            arguments: The fields of `ObjectArguments`.

        Raises:
            NoObjectGeneratedError: The reply is no such object. It is billed nevertheless.
            SchemaError: The schema is invalid, or the type has none.
        """
        from .generate import ObjectTask, generate_object_on

        return await generate_object_on(
            ObjectTask[Any](self._runtime, model, prompt, schema, streamed=False, **arguments)
        )

    @overload
    def stream_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: type[T],
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectStream[T]: ...
    @overload
    def stream_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: Mapping[str, Any],
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectStream[Json]: ...
    @overload
    def stream_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: object,
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectStream[Any]: ...
    def stream_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: object,
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectStream[Any]:
        """Like `generate_object`, but streamed.

        Use `async with engine.stream_object(...) as stream: async for partial in stream: …`. Partials are plain
        JSON, unchecked; `await stream.object()` is the complete object. The arguments and exceptions are those of
        `generate_object`.
        """
        from .generate import ObjectTask
        from .stream import ObjectStream

        return ObjectStream(ObjectTask[Any](self._runtime, model, prompt, schema, streamed=True, **arguments))
