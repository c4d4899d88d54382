"""The commands and what `callboard --help` says of each: a table, so that the help imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CommandEntry(NamedTuple):
    """Where a command is, and its line in ``--help``."""

    place: str
    """``module:function`` of the function that adds the command to a parser, relative to this package."""
    help: str
    """What it does, in a few words."""


COMMANDS: Mapping[str, CommandEntry] = {
    "demo": CommandEntry(
        "demo.demo:add_command",
        "a session over three wire protocols on a local model, its trace, and what it would cost",
    ),
    "ask": CommandEntry("ask.ask:add_command", "ask a model, from here or a pipe"),
    "chat": CommandEntry("chat.chat:add_command", "talk to a model; swap it in mid-conversation"),
    "embed": CommandEntry("ask.embed:add_command", "texts to vectors, one JSON object a line"),
    "collections": CommandEntry("ask.collections:add_command", "texts kept as vectors, for `similar`"),
    "similar": CommandEntry("ask.collections:add_similar", "what in a collection is like a text"),
    "batch": CommandEntry("batch.batch:add_command", "many requests for half the price, as JSON lines"),
    "background": CommandEntry("ask.background:add_command", "replies that go on without their program"),
    "image": CommandEntry("ask.image:add_command", "an image from a prompt, as a file"),
    "video": CommandEntry("ask.video:add_command", "a video from a prompt, as a file"),
    "doctor": CommandEntry("manage.doctor:add_command", "check configuration, keys, providers and the trace"),
    "traces": CommandEntry("look.traces:add_command", "the calls of a trace file, with tokens, times and costs"),
    "sessions": CommandEntry("look.sessions:add_command", "the sessions of a trace file, or what was said in one"),
    "logs": CommandEntry("look.messages:add_command", "what was said, searched by its words"),
    "cost": CommandEntry("look.cost:add_command", "what calls cost, by model, day, session, tag and more"),
    "budget": CommandEntry("look.budget:add_command", "what counts in a budget: spent, unknown, and left"),
    "stats": CommandEntry(
        "look.stats:add_stats_command", "latency, first token, tokens per second, cache hits, outcomes"
    ),
    "errors": CommandEntry("look.stats:add_errors_command", "failed attempts by class of error and model"),
    "sql": CommandEntry("look.sql:add_command", "one read-only SQL statement"),
    "models": CommandEntry("manage.models:add_command", "which models there are, what they can do and cost"),
    "keys": CommandEntry("manage.keys:add_command", "API keys in a private file"),
    "prices": CommandEntry("manage.prices:add_command", "what models cost, and why"),
    "plugins": CommandEntry("manage.plugins:add_command", "adapters, tools and commands of other packages"),
    "templates": CommandEntry("manage.templates:add_command", "prompts with parameters, for `ask -t`"),
    "completion": CommandEntry("manage.completion:add_command", "Tab for bash, zsh and fish"),
    "reprice": CommandEntry("reprice.reprice:add_command", "what stored calls cost under other prices"),
    "record": CommandEntry(
        "ask.record:add_command", "record what a provider answers, as a cassette for tests and demos"
    ),
    "replay": CommandEntry(
        "look.replay:add_command", "the events of a trace file again, at the pace at which they came or at once"
    ),
    "export": CommandEntry("look.export:add_command", "the calls of a trace file as CSV, JSON lines or Parquet"),
    "prune": CommandEntry("manage.upkeep:add_prune", "delete old calls and events from a trace file"),
    "backup": CommandEntry("manage.upkeep:add_backup", "copy a trace file while programs write to it"),
    "upgrade": CommandEntry("manage.upkeep:add_upgrade", "bring a trace file to what this version reads"),
    "ship": CommandEntry("manage.ship:add_command", "copy a trace file to a server, and go on as it grows"),
    "web": CommandEntry("look.web:add_command", "the live view in a browser: calls, streams, costs, providers"),
}
"""The commands by name, in the order of ``--help``."""

PAIR = ("NAME", "VALUE")
"""The metavar of a flag that takes a name and a value. The parser also takes them as one word, ``NAME=VALUE``."""
