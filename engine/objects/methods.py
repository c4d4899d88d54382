"""`generate_object` and `stream_object` as methods of the engine. What they need is imported by the first call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from adapters import ContentBlock
from bus.values.json import Json

from ..routing.choice import Model
from ..runtime.runtime import Runtime

if TYPE_CHECKING:
    from .generate import ObjectArguments, ObjectResult
    from .stream import ObjectStream

T = TypeVar("T")


class ObjectMethods:
    """What `Engine` can do besides, for replies that are data.

    schema: a type (msgspec Struct, dataclass, TypedDict, pydantic or attrs class, or a hint such as
    ``list[Person]``), or a JSON Schema as a dict, for which the output is plain JSON.
    """

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
        """A reply as an object of that type: `result.output`.

        By the model's own means where it takes schemas, else through a tool that it must call or an instruction;
        checked here in any case. Raises NoObjectGeneratedError if the reply is none, SchemaError for a schema that
        is none, and what `generate` raises.
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

        Partials are plain JSON, unchecked; `await stream.object()` is the whole one. Raises as `generate_object`.
        """
        from .generate import ObjectTask
        from .stream import ObjectStream

        return ObjectStream(ObjectTask[Any](self._runtime, model, prompt, schema, streamed=True, **arguments))
