"""Data out of text with the local model: one dataclass, then a streamed list.

python examples/objects.py [MODEL]
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated

import msgspec

from callboard import Engine, NoObjectGeneratedError

ADA = "Ada is 36 years old and lives in London. Give her name, age and city as JSON."
COLOURS = "Write a list of three colours."


@dataclass
class Person:
    """A person who is named in the text."""

    name: str
    age: Annotated[int, msgspec.Meta(ge=0, le=150)]
    city: str


async def main(model: str = "local-chat") -> None:
    async with Engine(trace=False) as engine:
        result = await engine.generate_object(model, ADA, schema=Person, max_output_tokens=80, temperature=0)
        print(result.output)
        try:
            async with engine.stream_object(
                model, COLOURS, schema=list[str], max_output_tokens=30, temperature=0
            ) as stream:
                async for partial in stream:
                    print(f"so far: {partial}")
            print(await stream.object())
        except NoObjectGeneratedError as error:  # a model this small repeats itself up to its token limit
            print(f"{error.reason}: {error.text!r}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
