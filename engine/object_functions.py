"""`generate_object` and `stream_object`, with their sync versions: see `functions`.

Each has three overloads for type checkers: a type returns an instance; a JSON Schema returns plain JSON; other
hints, such as ``list[Person] | None``, return Any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, Unpack, overload

from callboard.adapters import ContentBlock
from callboard.bus.values.base import Json

from .engine import Engine
from .functions import default_engine, engine_on
from .generation.object_stream import ObjectStream
from .generation.objects import ObjectArguments, ObjectResult
from .routing.model_choice import Model
from .sync import SyncHost, SyncStream, sync_host

T = TypeVar("T")


class SyncObjectStream(SyncStream, Generic[T]):
    """Like `ObjectStream`, for one thread at a time: iterable, and a context manager that cancels on leaving.

    with stream_object_sync("sonnet", "Ten recipes.", schema=list[Recipe]) as stream:
        for partial in stream:
            print(f"{len(partial)} recipes so far")
    recipes = stream.object()
    """

    def __init__(self, host: SyncHost, stream: ObjectStream[T]) -> None:
        super().__init__(host, stream)
        self._stream = stream

    def __iter__(self) -> Iterator[Json]:
        return self._through(self._stream.__aiter__())

    @property
    def text_stream(self) -> Iterator[str]:
        """See `ObjectStream.text_stream`."""
        return self._through(self._stream.text_stream)

    def object(self) -> T:
        """See `ObjectStream.object`."""
        return self._host.run(self._stream.object)

    def result(self) -> ObjectResult[T]:
        """See `ObjectStream.result`."""
        return self._host.run(self._stream.result)


@overload
async def generate_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: type[T],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[T]: ...


@overload
async def generate_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: Mapping[str, Any],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Json]: ...


@overload
async def generate_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Any]: ...


async def generate_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Any]:
    """Get a reply as data: `result.output` is an instance of the schema's type, or plain JSON for a JSON Schema.

    A provider that accepts schemas enforces the schema. Any other model must call a tool with the object as
    arguments, or gets the schema as an instruction; `result.warnings` reports this. In every case, the reply is
    checked against the schema. The exceptions of `generate` are raised here, too.

    Args:
        model: As in `generate`.
        prompt: As in `generate`.
        schema: A dataclass, TypedDict, msgspec Struct, pydantic or attrs class, a hint such as ``list[Person]``,
            or a JSON Schema as a dict.
        engine: As in `generate`.
        arguments: The fields of `ObjectArguments`.

    Raises:
        NoObjectGeneratedError: The reply does not match the schema. It is billed.
        SchemaError: The schema is invalid, or the type has no schema.
    """
    return await (engine or default_engine()).generate_object(model, prompt, schema=schema, **arguments)


@overload
def stream_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: type[T],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectStream[T]: ...


@overload
def stream_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: Mapping[str, Any],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectStream[Json]: ...


@overload
def stream_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectStream[Any]: ...


def stream_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectStream[Any]:
    """Like `generate_object`, but yields the object as it grows; see `ObjectStream`."""
    return (engine or default_engine()).stream_object(model, prompt, schema=schema, **arguments)


@overload
def generate_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: type[T],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[T]: ...


@overload
def generate_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: Mapping[str, Any],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Json]: ...


@overload
def generate_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Any]: ...


def generate_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Any]:
    """Run `generate_object` without an event loop; see `generate_sync`."""
    host = sync_host()

    async def ask() -> ObjectResult[Any]:
        return await engine_on(host, engine).generate_object(model, prompt, schema=schema, **arguments)

    return host.run(ask, name="generate_object_sync()")


@overload
def stream_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: type[T],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> SyncObjectStream[T]: ...


@overload
def stream_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: Mapping[str, Any],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> SyncObjectStream[Json]: ...


@overload
def stream_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> SyncObjectStream[Any]: ...


def stream_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> SyncObjectStream[Any]:
    """Run `stream_object` without an event loop; see `generate_sync`."""
    host = sync_host()

    async def ask() -> ObjectStream[Any]:
        stream = engine_on(host, engine).stream_object(model, prompt, schema=schema, **arguments)
        host.close_at_end(stream)
        return stream

    return SyncObjectStream(host, host.run(ask, name="stream_object_sync()"))
