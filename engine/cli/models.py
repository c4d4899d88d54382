"""`callboard models`: show models, their abilities and costs, and whether they can be used here."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from callboard.bus import SYSTEM_CLOCK, CallboardError, ConfigurationError
from callboard.bus.files import write_private
from callboard.tracestore.home import home_folder, price_table
from callboard.tracestore.prices.source import parse

from .. import ConfiguredModel, ModelInfo, ModelRegistry, get_model_info, list_models
from ..models.catalogue import (
    CAPABILITIES,
    FILE_NAME,
    MOST_BYTES,
    KnownModel,
    KnownModels,
    capability_name,
    convert,
    decode,
    default_catalogue,
    encode,
    known_models,
    nearest,
)
from ..models.configured import configured_models, load_registry
from ..models.registry import published_name
from ..routing.availability import AvailabilityTable
from ..runtime.adapters import make_spare
from .options import add_models_file, flag
from .prices import add_update_options, differences, download
from .sanitize import echo, note
from .screen import make_console
from .table import Column, add_format, figure, plural, write_rows

_WORDS = {"tools": "tools", "vision": "vision", "reasoning": "reasoning", "structured_output": "schema"}
"""The words for capabilities in a table."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One model, in the output of --json and --csv. None means unknown."""

    id: str  # the model as `provider:name`
    display_name: str | None  # the model's name, for people
    state: str
    """The state of a configured model; empty for other models."""
    context_window: int | None  # the size of the window in tokens
    max_output: int | None  # the maximum number of output tokens
    supports_tools: bool | None
    supports_vision: bool | None
    supports_reasoning: bool | None
    supports_structured_output: bool | None
    input_cost_per_million: Decimal | None  # in USD, exact
    output_cost_per_million: Decimal | None
    aliases: tuple[str, ...]  # other names of the model
    released: str | None  # the day of the release, YYYY-MM-DD
    deprecated: bool  # whether the provider has deprecated the model
    retires: str | None  # the day on which the model is shut down, YYYY-MM-DD
    reason: str = ""  # the reason why a configured model is not available
    source: str = ""  # the source of this data
    date: str = ""  # the day of that source


_OF_INFO = tuple(name for name in Line.__struct_fields__ if name not in ("id", "state", "reason"))
"""The fields that come from `ModelInfo`."""

_OF_CAPABILITIES = {
    "context_window": "max_context_tokens",
    "max_output": "max_output_tokens",
    "supports_tools": "supports_tools",
    "supports_vision": "supports_images",
    "supports_reasoning": "supports_thinking",
    "supports_structured_output": "supports_structured_output",
}
"""The fields from a configured model's adapter, by their names in `AdapterCapabilities`."""

_ABILITIES = tuple(field for field in _OF_CAPABILITIES if field.startswith("supports_"))


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the models you can use: those of models.yaml, and all others that your keys give access "
        "to. With a name, show all facts about one model. `callboard models update` downloads a newer "
        "list of models into $CALLBOARD_HOME. Exit code: 1 if there is no such model."
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a model of models.yaml, or any known model; or `update`"
    )
    flag(parser, "--all", help="list every known model, configured or not")
    parser.add_argument("--provider", metavar="NAME", help="list only models of this adapter or provider")
    parser.add_argument("--capability", metavar="NAME", help=f"list only models with {', '.join(CAPABILITIES)}")
    add_models_file(parser)
    add_update_options(parser.add_argument_group("callboard models update"), UPSTREAM, "the shipped list")
    add_format(parser, "for each model")
    parser.set_defaults(run=run, draws=lambda arguments: arguments.name != UPDATE)


def run(arguments: argparse.Namespace) -> int:
    if arguments.name == UPDATE:
        return run_update(arguments)
    registry = load_registry(arguments.models_file)
    if arguments.name is None:
        lines = list(_chosen(registry, arguments))
    else:
        lines = [_named(registry, arguments.name)]
        if arguments.format == "table":
            _show(lines[0])
            return 0
    return write_rows(
        arguments.format,
        Line,
        lines,
        [
            Column("model", lambda line: line.id, folds=True),
            figure("window", lambda line: _count(line.context_window), may_go=2),
            figure("output", lambda line: _count(line.max_output), may_go=3),
            figure("$/M in", lambda line: _dollars(line.input_cost_per_million)),
            figure("$/M out", lambda line: _dollars(line.output_cost_per_million)),
            Column("can", _can, folds=True, may_go=1),
            Column("also called", lambda line: ", ".join(line.aliases), folds=True),
            Column("", _facts_about, folds=True),
        ],
        empty="No matching models. `callboard models --all` lists every known model.",
        below=f"{plural(len(lines), 'model')}, as known on {default_catalogue().date}. "
        "Prices apply to a small prompt.",
    )


# --- Selecting models ---


def _chosen(registry: ModelRegistry, arguments: argparse.Namespace) -> Iterator[Line]:
    provider: str | None = arguments.provider
    field = None if arguments.capability is None else CAPABILITIES[capability_name(arguments.capability)]
    if arguments.all or (provider is not None and provider not in registry.adapters):
        lines: Iterable[Line] = map(_line_of, list_models(provider))
    else:
        here = _configured(registry)
        lines = (_line(model) for model in here if provider in (None, model.provider))
    return (line for line in lines if field is None or getattr(line, field))


def _configured(registry: ModelRegistry) -> list[ConfiguredModel]:
    return configured_models(
        registry,
        lambda entry: make_spare(entry, SYSTEM_CLOCK),
        AvailabilityTable(),
        price_table(home_folder()),
        SYSTEM_CLOCK,
    )


def _named(registry: ModelRegistry, name: str) -> Line:
    """The model with a name: as configured here, or as in the known models."""
    info, found = get_model_info(name), None
    try:
        entry = registry.resolve(name).model
    except ConfigurationError:
        pass
    else:
        routed = f"{entry.adapter}:{entry.wire_name}"
        info = info or get_model_info(published_name(registry.adapters[entry.adapter], entry) or routed)
        names = (entry.wire_name, None if info is None else info.id)  # the name may end in a date
        here = (model for model in _configured(registry) if model.provider == entry.adapter)
        found = next((model for model in here if model.wire_name in names), None)
    if found is not None:
        return _line(found)
    if info is not None:
        return _line_of(info)
    models = list_models(include_retired=True)
    every = {word for info in models for word in (info.id, f"{info.provider}:{info.id}", *info.aliases)}
    near = nearest(name, every, most=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`callboard models --all` lists all."
    raise CallboardError(f"unknown model {name!r}: {hint} You can still use it as provider:name.")


def _line_of(info: ModelInfo) -> Line:
    return Line(id=f"{info.provider}:{info.id}", state="", **{name: getattr(info, name) for name in _OF_INFO})


def _line(model: ConfiguredModel) -> Line:
    """A configured model, with the capabilities from its adapter."""
    can, info = model.capabilities, model.info
    facts: dict[str, Any] = dict.fromkeys(_OF_INFO) | {"deprecated": False, "source": "", "date": ""}
    if info is not None:
        facts |= {name: getattr(info, name) for name in _OF_INFO}
    facts |= {field: None if can is None else getattr(can, name) for field, name in _OF_CAPABILITIES.items()}
    if model.kind != "chat":  # the adapter's other capabilities are about chat models
        facts |= dict.fromkeys(_ABILITIES, False)
    facts |= {
        "input_cost_per_million": model.input_cost_per_million,
        "output_cost_per_million": model.output_cost_per_million,
        "aliases": model.aliases,
    }
    return Line(id=model.id, state=model.state, reason=model.reason, **facts)


# --- Output ---


def _show(line: Line) -> None:
    console = make_console()
    title = f"{line.id} ({line.display_name})" if line.display_name else line.id
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    can = _abilities(line)
    unknown = _abilities(line, None)
    facts = {
        "state": _facts_about(line) or ("" if line.state else "not configured here"),
        "also called": ", ".join(line.aliases),
        "window": _tokens(line.context_window),
        "output": _tokens(line.max_output),
        "can": ", ".join(can) or ("-" if not unknown else ""),
        "not known": ", ".join(unknown),
        "price": _price(line),
        "released": line.released or "",
        "known from": f"{line.source}, {line.date}" if line.source else "",
    }
    for name, fact in facts.items():
        if fact:
            console.print(f"  {name:<12}{fact}", highlight=False, markup=False, soft_wrap=True)


def _can(line: Line) -> str:
    return ", ".join(_abilities(line)) or ("?" if _abilities(line, None) else "-")


def _abilities(line: Line, value: bool | None = True) -> list[str]:
    """The known capabilities of the model, or with None the unknown ones."""
    return [word for name, word in _WORDS.items() if getattr(line, CAPABILITIES[name]) is value]


def _facts_about(line: Line) -> str:
    """Notes that matter for the choice of a model: its state, deprecation and retirement."""
    parts = [] if line.state in ("", "available") else [line.state.replace("_", " ")]
    parts += [line.reason] if line.reason else []
    if line.retires is not None:
        parts.append(f"retires on {line.retires}")
    elif line.deprecated:
        parts.append("deprecated")
    return ", ".join(parts)


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"


def _tokens(tokens: int | None) -> str:
    return "not known" if tokens is None else f"{tokens:,} tokens"


def _dollars(amount: Decimal | None) -> str:
    return "?" if amount is None else f"{amount:f}"


def _price(line: Line) -> str:
    if line.input_cost_per_million is None and line.output_cost_per_million is None:
        return "unknown; `callboard prices update` may add it"
    into, out = _dollars(line.input_cost_per_million), _dollars(line.output_cost_per_million)
    return f"${into} for a million tokens in, ${out} out; see also `callboard prices show {line.id}`"


# --- Updating the list ---

UPSTREAM = "https://raw.githubusercontent.com/BerriAI/litellm/main/model_prices_and_context_window.json"
UPDATE = "update"


def run_update(arguments: argparse.Namespace) -> int:
    home = home_folder()
    tell = echo if arguments.format == "table" else note  # stdout is only for rows
    path = home / FILE_NAME
    if arguments.shipped:
        path.unlink(missing_ok=True)
        tell("The list of models is the one shipped with Callboard.")
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
    """Read the models from a Callboard file, or convert LiteLLM's list."""
    value = parse(data, source)
    if isinstance(value, dict) and "format" in value:
        return decode(data, source)
    return convert(value, source=f"LiteLLM, {source}", day=datetime.now(UTC).date().isoformat())


def difference(before: KnownModels, after: KnownModels) -> list[str]:
    """The differences between two lists, by model."""
    old, new = ({model.id: model for model in listing.models} for listing in (before, after))
    found = differences(old, new, lambda name: _facts((new if name in new else old)[name]))
    return found or ["nothing has changed"]


def _facts(model: KnownModel) -> str:
    window = "?" if model.context_window is None else f"{model.context_window:,}"
    words = [word for word in ("tools", "vision", "reasoning", "structured") if getattr(model, word)]
    return f"{window} tokens; {', '.join(words) or 'other features unknown'}"
