"""`callboard models update`: newer knowledge of models, kept in $CALLBOARD_HOME."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from callboard.bus.private_file import write_private
from callboard.engine.models.known_models import (
    FILE_NAME,
    MOST_BYTES,
    KnownModel,
    KnownModels,
    convert,
    decode,
    encode,
    known_models,
)
from callboard.tracestore.home import home_folder
from callboard.tracestore.prices.source import parse

from ..common.harmless import note, say
from ..common.words import plural
from .updating import add_update_options, differences, download

UPSTREAM = "https://raw.githubusercontent.com/BerriAI/litellm/main/model_prices_and_context_window.json"
UPDATE = "update"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the update, among those of `callboard models`."""
    update = parser.add_argument_group("callboard models update")
    add_update_options(update, UPSTREAM, "what came with Callboard")


def run_update(arguments: argparse.Namespace) -> int:
    """Raises ConfigurationError, CallboardError if the network fails."""
    home, tell = home_folder(), say if arguments.format == "table" else note  # there are no rows to tell
    path = home / FILE_NAME
    if arguments.shipped:
        path.unlink(missing_ok=True)
        tell("What is known of models is what came with Callboard.")
        return 0
    source: str = arguments.source
    after = read_source(download(source, MOST_BYTES), source)
    for line in difference(known_models(home), after):
        tell(line)
    if arguments.dry_run:
        tell("Nothing was changed.")
        return 0
    home.mkdir(parents=True, exist_ok=True)
    write_private(path, encode(after))
    tell(f"{plural(len(after.models), 'model')} of {after.date}, in {path}")
    return 0


def read_source(data: bytes, source: str) -> KnownModels:
    """A file of ours, or LiteLLM's list made into one. Raises ConfigurationError."""
    value = parse(data, source)
    if isinstance(value, dict) and "format" in value:
        return decode(data, source)
    return convert(value, source=f"LiteLLM, {source}", day=datetime.now(UTC).date().isoformat())


def difference(before: KnownModels, after: KnownModels) -> list[str]:
    """What changes, by model."""
    old, new = ({model.id: model for model in known.models} for known in (before, after))
    return differences(old, new, lambda name: _facts((new if name in new else old)[name])) or [
        "nothing has changed"
    ]


def _facts(model: KnownModel) -> str:
    window = "?" if model.context_window is None else f"{model.context_window:,}"
    words = [word for word in ("tools", "vision", "reasoning", "structured") if getattr(model, word)]
    return f"{window} tokens; {', '.join(words) or 'no more known'}"
