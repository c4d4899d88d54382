"""Imports every module that a command needs, once, in the process that forks for each command.

The book's pages and `running.start` also start commands in new processes.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from pkgutil import walk_packages

from callboard import PriceTable, adapters, bus, engine, tracestore

WITHIN = (
    *(
        "aiosqlite",
        "anyio._backends._asyncio",
        "httpx",
        "psycopg",
        "rich._emoji_codes",
        "rich.console",
        "rich.live",
    ),
    *("jsonschema", "rich._unicode_data.unicode17-0-0", "rich.table", "structlog", "ulid", "yaml"),
    *("prompt_toolkit.input.vt100", "prompt_toolkit.key_binding.bindings.search", "prompt_toolkit.patch_stdout"),
    "tests.cli.adapters",
)
"""Modules that functions of Callboard, of libraries, and of the tests' configuration import."""

for room in (bus, adapters, tracestore, engine):
    for module in walk_packages(room.__path__, f"{room.__name__}."):
        if not module.name.endswith("__main__") and "callboard.adapters.conformance" not in module.name:
            with contextlib.suppress(ModuleNotFoundError):  # The module needs a library that is not installed.
                import_module(module.name)
for name in WITHIN:
    with contextlib.suppress(ModuleNotFoundError):
        import_module(name)
PriceTable.default()  # The table is cached, because reading it takes as long as a command.
