"""A call of which nobody knows what it used: a budget, a turn and its events say so, and never nothing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from callboard.adapters import NetworkError
from callboard.bus import LlmCallFailed, SessionTurnCompleted
from callboard.engine.cli import main
from callboard.tracestore import PriceRow, PriceTable, TraceStore
from tests.support.engines import running
from tests.support.scripted import Say
from tests.tracestore.trace_making import Maker

from ..tracestore.contract.test_queries import COUNTS, a_faulty_day

pytestmark = pytest.mark.anyio

TABLE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=2_000_000)], label="test")
MOST = 16_384
WORST_NANO = 10 * 1000 + MOST * 2000
"""One message of 10 tokens, and all the output that it may have."""


async def test_a_turn_says_how_much_of_its_cost_is_known(tmp_path: Path) -> None:
    """The sum of a turn whose call got no answer is no zero: its event has the counts, and no amount."""
    async with running(Say(fails=NetworkError("dropped")), prices=TABLE) as (engine, events):
        with pytest.raises(NetworkError):
            await engine.session("s:m").send("Hi")
        seen = [envelope.data for envelope in events.take()]
    (failed,) = [event for event in seen if isinstance(event, LlmCallFailed)]
    (turn,) = [event for event in seen if isinstance(event, SessionTurnCompleted)]
    assert turn.attempts == turn.calls == 1
    assert turn.estimated + turn.unknown == 1
    assert (turn.cost_nano_usd is None) == (failed.usage is None)


async def test_a_result_says_what_its_sum_is_made_of() -> None:
    """The total of `generate` has the counts beside it."""
    async with running(Say("one"), prices=TABLE) as (engine, _):
        result = await engine.generate("s:m", "Hi")
    assert result.total_cost.nano_usd == result.cost_sum.nano_usd == 20_000
    assert (result.cost_sum.calls, result.cost_sum.complete) == (1, True)


# -- Every command, over a file that a faulty day has filled


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What `callboard` prints, in this process, of a trace of a faulty day."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "180")

    async def fill() -> None:
        async with TraceStore(tmp_path / "trace.db") as store:
            await a_faulty_day(store, Maker())

    anyio.run(fill)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


def test_commands_say_unknown_and_never_nothing(command: Callable[..., str], tmp_path: Path) -> None:
    """As tables, as JSON, as CSV and as a page."""
    for name, value in {"cost": "--by", "stats": "--by"}.items():
        (row,) = json.loads(f"[{command(name, value, 'total', '--json')}]")
        assert {count: row[count] for count in ("estimated", "unpriced", "unknown")} == {
            count: COUNTS[count] for count in ("estimated", "unpriced", "unknown")
        }
        (listed,) = csv.DictReader(io.StringIO(command(name, value, "total", "--csv")))
        assert listed["unknown"] == "5"
    assert "5 calls of unknown cost, and in no sum" in command("cost")
    assert "5 attempts of unknown usage" in command("stats")
    assert "+ 1 unpriced + 5 unknown" in command("sessions")
    assert "+ 1 unpriced + 5 unknown" in command("traces")
    assert command("traces", "--unknown", "--json").count("\n") == 5
    (session,) = json.loads(f"[{command('sessions', '--json')}]")
    assert session["unknown"] == 5
    (tmp_path / "p.yaml").write_text("label: later\nprices:\n  - {model: 'openai:*', input: 2, output: 2}\n")
    reprice = ("reprice", "--prices", str(tmp_path / "p.yaml"), "--dry-run")
    assert "5 calls of unknown cost, and in no sum" in command(*reprice)
    assert [row["unknown"] for row in csv.DictReader(io.StringIO(command(*reprice, "--csv")))] != []
    command(*reprice, "--html", str(tmp_path / "page.html"))
    assert "Of 5 calls more not even the usage is known." in (tmp_path / "page.html").read_text()
