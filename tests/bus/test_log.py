"""Log lines go to `logging`, below one logger, and to no stream."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from callboard.bus.log import ROOT, Log
from tests.support.logs import captured_logs

CHECKOUT = Path(__file__).parents[2]

SAY_IT_ALL = """
from callboard.bus.log import Log
log = Log("engine.tools")
log.debug("a", x=1), log.info("b"), log.warning("c", ValueError("no")), log.error("d", text="x")
"""


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """What reaches a handler of the host's."""
    kept: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    keep = Keep()
    logging.getLogger(ROOT).addHandler(keep)
    yield kept
    logging.getLogger(ROOT).removeHandler(keep)


@pytest.fixture
def hosts_structlog() -> Iterator[list[str]]:
    """A host that has configured structlog for itself, and what it hears."""
    heard: list[str] = []

    def hear(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
        heard.append(line["event"])
        raise structlog.DropEvent

    structlog.configure(processors=[hear], cache_logger_on_first_use=True)
    yield heard
    structlog.reset_defaults()


def program(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text], cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60
    )


def test_a_program_that_configures_nothing_sees_nothing() -> None:
    """Neither on stdout nor on stderr, at any level."""
    done = program(SAY_IT_ALL)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_standard_library_configures_what_is_seen() -> None:
    """Level, format and stream are the host's; a traceback stands below its line."""
    done = program(
        "import logging\n"
        "logging.basicConfig(format='%(levelname)s|%(name)s|%(message)s', level='INFO')" + SAY_IT_ALL
    )
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "INFO|callboard.engine.tools|b",
        "WARNING|callboard.engine.tools|c",
        "ValueError: no",
        "ERROR|callboard.engine.tools|d text='x'",
    ]


def test_nothing_that_nobody_listens_to_imports_structlog() -> None:
    """A line below the level costs no import."""
    done = program(
        "import sys\nfrom callboard.bus.log import Log\n"
        "Log('x').debug('a'); Log('x').info('b'); print('structlog' in sys.modules)"
    )
    assert done.stdout == "False\n"


def test_a_record_has_the_event_and_its_fields_and_says_who_logged(records: list[logging.LogRecord]) -> None:
    """Words for people, fields for programs, and the place of the call, not of the logger's own code."""
    Log("a.b").warning("it_happened", times=2, level="high", message="m", name="n")
    (record,) = records
    assert record.name == "callboard.a.b"
    assert record.funcName == "test_a_record_has_the_event_and_its_fields_and_says_who_logged"
    assert record.pathname == __file__
    fields = {"event": "it_happened", "times": 2, "level": "high", "message": "m", "name": "n"}
    assert getattr(record, ROOT) == fields
    assert record.getMessage() == "it_happened times=2 level='high' message='m' name='n'"


def test_text_in_a_field_can_not_forge_a_line(records: list[logging.LogRecord]) -> None:
    """Line breaks, escapes and changes of direction are written as Python writes them."""
    Log("a").warning("said", text="x\nERROR forged\x1b[2J\u202e %s %(no)s")
    assert records[0].getMessage() == "said text='x\\nERROR forged\\x1b[2J\\u202e %s %(no)s'"


def test_a_hosts_structlog_neither_hears_it_nor_is_changed(hosts_structlog: list[str]) -> None:
    """Its configuration is the same before and after, and its processors see only its own lines."""
    before = structlog.get_config()
    with captured_logs() as lines:
        Log("new").warning("ours")
    structlog.get_logger().warning("theirs")
    assert [line["event"] for line in lines] == ["ours"]
    assert hosts_structlog == ["theirs"]
    assert structlog.get_config() == before


def test_logging_that_fails_fails_nobody() -> None:
    """A handler that raises doesn't reach who logs."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    broken = Broken()
    logging.getLogger(ROOT).addHandler(broken)
    try:
        Log("a").error("something")
    finally:
        logging.getLogger(ROOT).removeHandler(broken)
