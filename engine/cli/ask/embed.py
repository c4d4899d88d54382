"""`callboard embed`: texts to vectors, one JSON object a line, traced and priced like every call."""

from __future__ import annotations

import argparse
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TextIO

import msgspec

from callboard.adapters.embeddings import INPUT_TYPES, PartialEmbeddingError, Vector
from callboard.bus import CallboardError
from callboard.bus.values.json import Json, JsonObject
from callboard.engine import EmbeddingResult, Engine

from ..common.arguments import add_key, add_model, add_models_file
from ..common.engine import on_engine, tell_warnings
from ..common.harmless import note, write_json
from ..common.money import cost_text
from ..common.output import json_text
from ..common.words import plural


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "embed",
        help="Turn texts into vectors",
        description="Embeds the texts that are given, or else each line of stdin. A text that can't be embedded "
        "has an `error` in place of its `embedding`, and the exit code is then 1.",
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="a text (default: the lines of stdin)")
    add_model(parser)
    add_models_file(parser)
    add_key(parser)
    parser.add_argument("--dimensions", type=int, metavar="N", help="of each vector (default: the model's own)")
    parser.add_argument("--input-type", choices=INPUT_TYPES, help="what the texts are embedded for")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long")
    parser.add_argument(
        "--jsonl",
        metavar="FIELD",
        help="stdin has JSON objects, and the text is in this field of each; they come out with their vectors",
    )
    parser.add_argument("--base64", action="store_true", help="vectors as the base64 of little-endian float32")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError, if nothing could be embedded."""
    records = list(_records(arguments.text, arguments.jsonl, sys.stdin))
    texts = [text for text, _ in records]

    async def work(engine: Engine) -> EmbeddingResult:
        return await engine.embed(
            texts,
            model=arguments.model,
            dimensions=arguments.dimensions,
            input_type=arguments.input_type,
            truncate=arguments.truncate,
            key=arguments.key,
        )

    write = partial(_write, records, as_base64=arguments.base64)
    try:
        result = on_engine(arguments, work)
    except PartialEmbeddingError as error:
        write(error.vectors, failures={at: str(failure) for at, failure in error.failures.items()})
        raise
    write(result.vectors)
    tell_warnings(result.warnings)
    what = f"{plural(len(texts), 'text')}, {result.dimensions} dimensions, {result.model}"
    note(f"{what}: {plural(result.usage.input_tokens, 'token')}, {cost_text(result.cost)}")
    return 0


def _records(given: list[str], field: str | None, lines: TextIO) -> Iterator[tuple[str, JsonObject]]:
    """Each text, with the fields that begin its line of output.

    Raises:
        CallboardError: A line is no object with such a field.
    """
    if given or field is None:
        for number, text in enumerate(given or (line.rstrip("\n") for line in lines)):
            yield text, {"index": number}
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record: Json = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise CallboardError(f"line {number} of the input is no JSON: {error}") from error
        found = record.get(field) if isinstance(record, dict) else None
        if not isinstance(record, dict) or not isinstance(found, str):
            raise CallboardError(f"line {number} of the input has no text in a field {field!r}")
        yield found, record


def _write(
    records: list[tuple[str, JsonObject]],
    vectors: Iterable[Vector | None],
    *,
    as_base64: bool,
    failures: dict[int, str] | None = None,
) -> None:
    for at, ((_, record), vector) in enumerate(zip(records, vectors, strict=True)):
        outcome: JsonObject
        if vector is None:
            outcome = {"error": (failures or {})[at]}
        else:
            outcome = {"embedding": _base64(vector) if as_base64 else list(vector)}
        write_json(json_text({**record, **outcome}))


def _base64(vector: Vector) -> str:
    little = vector
    if sys.byteorder == "big":
        little = vector[:]
        little.byteswap()
    return b64encode(little.tobytes()).decode()
