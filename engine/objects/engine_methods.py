"""Replies that are data, as methods of the engine. What they need is imported by the first call."""

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
        """A reply as an object of a type: `result.output`.

        The model is held to the schema by its own means, where it takes schemas, else through a tool that it must
        call, or through an instruction. The reply is checked here in any case. The exceptions of `generate` are
        raised here, too.

        Args:
            model: As in `generate`.
            prompt: As in `generate`.
            schema: A type (a msgspec Struct, dataclass, TypedDict, pydantic or attrs class, or a hint such as
                ``list[Person]``), or a JSON Schema as a dict, for which the output is plain JSON.
            arguments: The fields of `ObjectArguments`.

        Raises:
            NoObjectGeneratedError: The reply is no such object. It has been paid for all the same.
            SchemaError: The schema is none, or the type has none.
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
        """The same, streamed: `async with engine.stream_object(...) as stream: async for partial in stream: …`.

        Partials are plain JSON, unchecked; `await stream.object()` is the whole object. The arguments and
        exceptions are those of `generate_object`.
        """
        from .generate import ObjectTask
        from .stream import ObjectStream

        return ObjectStream(ObjectTask[Any](self._runtime, model, prompt, schema, streamed=True, **arguments))
