"""`callboard record`: record the requests and answers of a provider, byte for byte, in a cassette.

The adapter of type ``cassette`` wraps the model's adapter, and later replays the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from callboard.adapters.cassettes import load_cassette
from callboard.bus import CallboardError, ConfigurationError
from callboard.bus.values.base import JsonObject

from .. import Engine, ModelRegistry, Session, load_registry
from ..models.entries import AdapterEntry
from .command_line import FAILED
from .conversation_setup import first_model
from .options import add_model, add_models_file, failing_as, flag
from .sanitize import note
from .screen import ReplyWriter, Screen, make_console, print_error
from .table import json_text, plural


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Send the prompts, or the lines of stdin, one after the other in one session, and write all HTTP "
        "traffic to a cassette. The cassette has masked keys, but unmasked messages. Errors of the "
        "provider are recorded, too."
    )
    parser.add_argument(
        "prompt", nargs="*", metavar="PROMPT", help="the prompts to send (default: the lines of stdin)"
    )
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="the cassette")
    add_model(parser, required=False)
    parser.add_argument("--system", metavar="TEXT", help="set the system prompt")
    flag(parser, "--whole", help="request whole replies instead of streams")
    flag(parser, "--replace", help="overwrite FILE if it exists")
    add_models_file(parser)
    parser.set_defaults(run=run, draws=True)


def run(arguments: argparse.Namespace) -> int:
    """Record a scenario. An error of the provider is recorded, too."""
    file: Path = arguments.output
    if file.exists() and not arguments.replace:
        raise CallboardError(f"{file} already exists. To overwrite it, use --replace")
    registry = load_registry(arguments.models_file)
    name = arguments.model or first_model(registry)
    model = registry.resolve(name).model
    entry = registry.adapter_of(model)
    prompts = arguments.prompt or [line.strip() for line in sys.stdin if line.strip()]
    if not prompts:
        raise ConfigurationError("no prompts: pass PROMPT, or lines on stdin")
    screen = Screen(make_console())

    async def work() -> bool:
        async with Engine(models=recording(registry, entry, file), trace=False) as engine:
            session = engine.session(name, system_prompt=arguments.system)
            return await _ask(session, prompts, screen, arguments.whole)

    with failing_as(CallboardError, file):
        answered = screen.run(work)
    if not file.exists():
        raise CallboardError(f"no HTTP request was sent to {entry.name}, so nothing was recorded")
    count = len(load_cassette(file).exchanges)
    note(f"{plural(count, 'exchange')} written to {file}")
    note(f"To replay it, in models.yaml: {in_yaml(entry, file)}")
    return 0 if answered else FAILED


def recording(registry: ModelRegistry, entry: AdapterEntry, file: Path) -> ModelRegistry:
    """The same models, with all traffic of one adapter recorded in a file."""
    if entry.type == "cassette":
        raise ConfigurationError(f"adapter {entry.name!r} replays a cassette itself; name a model of a provider")
    options = {"type": entry.type, "file": str(file), "record": True, "options": dict(entry.config.options)}
    config = msgspec.structs.replace(entry.config, options=options)
    recorded = msgspec.structs.replace(entry, type="cassette", config=config)
    adapters = {**registry.adapters, entry.name: recorded}
    return ModelRegistry(adapters, registry.models, default_provider=registry.default_provider)


def in_yaml(entry: AdapterEntry, file: Path) -> str:
    """The line for models.yaml with the adapter that replays a recording."""
    options: JsonObject = {"type": entry.type, "file": str(file)}
    if entry.config.options:
        options["options"] = dict(entry.config.options)
    replayed: JsonObject = {"type": "cassette", "options": options}
    if entry.config.base_url is not None:  # server-specific behaviour depends on the address
        replayed["base_url"] = entry.config.base_url
    return f"{entry.name}: {json_text(replayed)}"


async def _ask(session: Session, prompts: Sequence[str], screen: Screen, json_form: bool) -> bool:
    """Send the prompts in order, and show the replies. After a failure, stop and return False."""
    for prompt in prompts:
        writer = ReplyWriter(screen, "")
        try:
            if json_form:
                screen.line((await session.send(prompt)).text)
                continue
            async with session.stream(prompt) as turn:
                async for event in turn:
                    writer.feed(event)
                await turn.message()
        except ConfigurationError:
            raise
        except CallboardError as error:
            print_error(f"{type(error).__name__}: {error}")
            return False
        finally:
            writer.end()
    await screen.drawn()
    return True
