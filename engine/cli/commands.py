"""The commands in their groups, each with its line in `callboard --help`.

This is a table, so that the help imports no command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CommandEntry(NamedTuple):
    """Where a command is, and its line in ``--help``."""

    place: str
    """``module:function`` of the function that adds the command to a parser, relative to this package."""
    help: str
    """What it does, in a few words that begin with a verb."""


GROUPS: Mapping[str, Mapping[str, CommandEntry]] = {
    "Ask and chat": {
        "ask": CommandEntry("ask.ask:add_command", "Ask a model a question"),
        "chat": CommandEntry("chat.chat:add_command", "Talk to a model, and switch models on the way"),
        "image": CommandEntry("ask.image:add_command", "Make an image from a prompt"),
        "video": CommandEntry("ask.video:add_command", "Make a video from a prompt"),
        "batch": CommandEntry("batch.batch:add_command", "Send many requests at a lower price"),
        "background": CommandEntry(
            "ask.background:add_command", "Read replies that a provider completes in the background"
        ),
        "templates": CommandEntry("manage.templates:add_command", "Store prompts with parameters for `ask -t`"),
    },
    "Embed and search": {
        "embed": CommandEntry("ask.embed:add_command", "Turn texts into vectors"),
        "collections": CommandEntry("ask.collections:add_command", "Store texts as vectors"),
        "similar": CommandEntry("ask.collections:add_similar", "Find similar texts in a collection"),
    },
    "Look at calls": {
        "traces": CommandEntry("look.traces:add_command", "Show recorded calls with tokens, latency and cost"),
        "sessions": CommandEntry("look.sessions:add_command", "Show sessions and their messages"),
        "logs": CommandEntry("look.messages:add_command", "Show and search questions and answers"),
        "stats": CommandEntry("look.stats:add_stats_command", "Show latency, speed, cache hits and outcomes"),
        "errors": CommandEntry("look.stats:add_errors_command", "Count failed attempts by error and model"),
        "replay": CommandEntry("look.replay:add_command", "Print recorded events again"),
        "sql": CommandEntry("look.sql:add_command", "Run a read-only SQL statement"),
    },
    "Costs and prices": {
        "cost": CommandEntry("look.cost:add_command", "Sum up costs by model, day, session or tag"),
        "budget": CommandEntry("look.budget:add_command", "Show what a budget has spent and left"),
        "prices": CommandEntry("manage.prices:add_command", "Show, explain and update prices"),
        "reprice": CommandEntry(
            "reprice.reprice:add_command", "Recalculate the cost of recorded calls with another price table"
        ),
    },
    "Manage the trace": {
        "export": CommandEntry("look.export:add_command", "Export calls as CSV, JSON Lines or Parquet"),
        "prune": CommandEntry("manage.upkeep:add_prune", "Delete old calls and events"),
        "backup": CommandEntry("manage.upkeep:add_backup", "Copy a trace file while programs write to it"),
        "upgrade": CommandEntry("manage.upkeep:add_upgrade", "Upgrade a trace file to this version"),
        "ship": CommandEntry("manage.ship:add_command", "Copy a trace file to a server as it grows"),
    },
    "Serve": {
        "web": CommandEntry("look.web:add_command", "Serve the live view to a browser"),
    },
    "Set up": {
        "demo": CommandEntry("demo.demo:add_command", "Run a demo on a local model, without a key"),
        "doctor": CommandEntry("manage.doctor:add_command", "Check configuration, keys, providers and the trace"),
        "models": CommandEntry("manage.models:add_command", "List models with their features and prices"),
        "keys": CommandEntry("manage.keys:add_command", "Store API keys in a private file"),
        "plugins": CommandEntry(
            "manage.plugins:add_command", "List adapters, tools and commands of other packages"
        ),
        "completion": CommandEntry(
            "manage.completion:add_command", "Set up Tab completion for bash, zsh and fish"
        ),
        "record": CommandEntry("ask.record:add_command", "Record replies of a provider for tests and demos"),
    },
}
"""The commands by group and name, in the order of ``--help``."""

COMMANDS: Mapping[str, CommandEntry] = {name: entry for group in GROUPS.values() for name, entry in group.items()}
"""The commands by name, in the same order."""

PAIR = ("NAME", "VALUE")
"""The metavar of a flag that takes a name and a value. The parser also takes them as one word, ``NAME=VALUE``."""
