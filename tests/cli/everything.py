"""Importing this module imports everything that commands need: once, in the process that forks for each command.

That a command also starts from nothing, and ends, is shown by the book's pages and by `running.start`.
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
"""What our modules, those of libraries, and the configuration of tests import within functions."""

for room in (bus, adapters, tracestore, engine):
    for module in walk_packages(room.__path__, f"{room.__name__}."):
        if not module.name.endswith("__main__") and "callboard.adapters.conformance" not in module.name:
            with contextlib.suppress(ModuleNotFoundError):  # of a library that is not installed
                import_module(module.name)
for name in WITHIN:
    with contextlib.suppress(ModuleNotFoundError):
        import_module(name)
PriceTable.default()  # cached, because reading it takes as long as a command
