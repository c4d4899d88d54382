"""`callboard batch`: many requests for half the price. The batch goes on whatever becomes of the command."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from callboard.adapters.videos import PollPolicy
from callboard.bus import CallboardError, ConfigurationError
from callboard.bus.values.cost_sum import CostSum
from callboard.engine import BatchHandle, BatchResult, BatchState, Engine, load_registry

from ..common.arguments import add_key, add_model, add_models_file, positive
from ..common.arguments import tag as one_tag
from ..common.engine import on_engine, tell_warnings
from ..common.fitting import FittingTable
from ..common.harmless import harmless, note, say, write_json
from ..common.output import add_format, json_text, write
from ..common.screen import make_console
from ..common.words import plural
from .lines import DEFAULT_TOKENS, BatchLine, batch_line, requests_in, result_line, summary

FAILED = 1


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "batch",
        help="Send many requests at a lower price",
        description="A batch is answered within a day, mostly much sooner, and mostly for half the price. It goes "
        "on without this command, and is found again by its id.",
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_submit(inner)
    listing = inner.add_parser("list", help="List the latest batches", description="Lists the latest batches.")
    listing.add_argument("--limit", type=positive, default=20, metavar="N", help="so many (default: 20)")
    add_format(listing, "for each batch")
    add_models_file(listing)
    listing.set_defaults(run=list_batches)
    wait = inner.add_parser(
        "wait",
        help="Wait for a batch, and write its results",
        description="Waits until a batch is over, and writes its results. Ctrl-C ends the waiting and not the "
        "batch.",
    )
    wait.add_argument("--every", type=float, metavar="SECONDS", help="look so often (default: 5 to 60 seconds)")
    results = inner.add_parser(
        "results",
        help="Write the results that are ready",
        description="Looks at a batch once, and writes the results that are there, one JSON object a line in the "
        "order of the requests. The exit code is 1 if some are missing, or are errors.",
    )
    cancel = inner.add_parser(
        "cancel",
        help="Cancel a batch",
        description="Ends a batch. What was answered by then is billed, and is among its results.",
    )
    for one, run in ((wait, wait_for), (results, write_results), (cancel, cancel_one)):
        one.add_argument("id", metavar="ID", help="the batch")
        add_models_file(one)
        one.set_defaults(run=run)


def _add_submit(inner: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    submit = inner.add_parser(
        "submit",
        help="Send a batch, and print its id",
        description="Sends the requests in FILE, one JSON object a line: `prompt` or `messages`, and perhaps "
        "`id`, `system`, `max_tokens`, `temperature`, `output_schema` and `options`. With --id, the command can "
        "be repeated whatever became of it: nothing is sent twice.",
    )
    submit.add_argument("file", type=Path, metavar="FILE", help="the requests; - is stdin")
    add_model(submit)
    submit.add_argument("--id", metavar="ID", help="the batch's id (default: a new one)")
    submit.add_argument(
        "--max-tokens",
        type=positive,
        default=DEFAULT_TOKENS,
        metavar="N",
        help=f"the longest reply, where a line says nothing (default: {DEFAULT_TOKENS})",
    )
    submit.add_argument(
        "--tag", type=one_tag, action="append", default=[], metavar="KEY=VALUE", help="of the calls in the trace"
    )
    add_key(submit)
    add_models_file(submit)
    submit.set_defaults(run=submit_one)


def submit_one(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    lines = _lines(arguments.file)
    model = load_registry(arguments.models_file).resolve(arguments.model).model.id
    requests = requests_in(lines, model=model, max_tokens=arguments.max_tokens)

    async def work(engine: Engine) -> BatchHandle:
        return await engine.create_batch(
            requests, model=model, batch_id=arguments.id, key=arguments.key, tags=dict(arguments.tag)
        )

    batch = on_engine(arguments, work)
    tell_warnings(batch.warnings)
    say(batch.id)
    note(f"{plural(len(requests), 'request')} for {batch.model} in {plural(len(batch.jobs), 'job')}")
    _say_how_to_wait(batch.id)
    return 0


def _lines(file: Path) -> list[str]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    return text.split("\n")


def _say_how_to_wait(batch_id: str) -> None:
    note(f"for its results: {shlex.join(['callboard', 'batch', 'wait', batch_id])}")


def list_batches(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""

    async def work(engine: Engine) -> list[BatchLine]:
        return [batch_line(stored) for stored in await engine.batches(arguments.limit)]

    found = on_engine(arguments, work)
    if arguments.format != "table":
        write(arguments.format, BatchLine, found)
        return 0
    table = FittingTable()
    for heading in ("batch", "model", "status"):
        table.add_column(heading, folds=heading == "batch")
    for heading in ("requests", "answered", "failed"):
        table.add_column(heading, justify="right")
    table.add_column("planned", may_go=1)
    for line in found:
        planned = datetime.fromtimestamp(line.planned_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")
        counts = (f"{count}" for count in (line.requests, line.succeeded, line.failed))
        table.add_row(harmless(line.id), harmless(line.model), line.status, *counts, planned)
    make_console().print(table)
    return 0


def wait_for(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    every = arguments.every
    polling = None if every is None else PollPolicy(first=every, longest=every, jitter=False)
    told = ""

    def tell(state: BatchState) -> None:
        nonlocal told
        said = summary(state.status, state.succeeded, state.total)
        if said != told:
            note(said)
        told = said

    async def work(engine: Engine) -> tuple[BatchResult, ...]:
        batch = await engine.resume_batch(arguments.id, polling=polling)
        tell_warnings(batch.warnings)
        return (await batch.wait(on_progress=tell)).results

    try:
        results = on_engine(arguments, work)
    except (KeyboardInterrupt, SystemExit):
        note(f"batch {arguments.id} goes on")
        _say_how_to_wait(arguments.id)
        raise
    return _write(results, missing=0)


def write_results(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""

    async def work(engine: Engine) -> tuple[BatchResult | None, ...]:
        batch = await engine.resume_batch(arguments.id)
        note(summary(batch.status, batch.state.succeeded, batch.state.total))
        return batch.results

    results = on_engine(arguments, work)
    there = [result for result in results if result is not None]
    return _write(there, missing=len(results) - len(there))


def _write(results: Iterable[BatchResult], *, missing: int) -> int:
    cost, errors = CostSum(), 0
    for result in results:
        write_json(json_text(result_line(result)))
        cost += result.cost_sum
        errors += result.response is None
    unknown = cost.unpriced + cost.unknown
    beside = f", and {plural(unknown, 'request')} of unknown cost" if unknown else ""
    note(f"{plural(cost.calls - errors, 'answer')}, {plural(errors, 'error')}: {cost.usd} USD{beside}")
    return FAILED if errors or missing else 0


def cancel_one(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""

    async def work(engine: Engine) -> bool:
        batch = await engine.resume_batch(arguments.id)
        return await batch.cancel()

    if not on_engine(arguments, work):
        raise CallboardError(f"batch {arguments.id} is over: there is nothing to end")
    note(f"batch {arguments.id} is being ended; what was answered by then is among its results")
    _say_how_to_wait(arguments.id)
    return 0
