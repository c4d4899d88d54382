"""`callboard batch` and `callboard background`: replies that a provider completes later."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from callboard.adapters import CanonicalRequest, Message
from callboard.adapters.http.retry import PollPolicy
from callboard.bus import CallboardError, ConfigurationError, Cost
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import CostSum
from callboard.tracestore import OpenReply, StoredBatch

from .. import BatchResult, BatchState, Engine, load_registry
from ..generation.arguments import as_messages
from .command_line import FAILED
from .options import (
    add_action,
    add_key,
    add_limit,
    add_model,
    add_models_file,
    on_engine,
    positive,
    print_warnings,
    repeated,
)
from .options import tag as one_tag
from .sanitize import echo, note, write_json
from .table import Column, add_format, figure, json_text, plural, write_rows


def add_batch(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Send many requests as one batch. Providers answer within a day, usually much sooner, and "
        "usually for half the price. A batch continues without this command. Use its id to find it again."
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_submit(inner)
    listing = add_action(inner, "list", list_batches, "List the latest batches")
    add_limit(listing, 20, "batches")
    add_format(listing, "for each batch")
    add_models_file(listing)
    wait = add_action(
        inner,
        "wait",
        wait_for,
        "Wait for a batch, and write its results",
        "Wait until a batch has ended, and write its results. Ctrl-C stops the command but not the batch.",
    )
    wait.add_argument(
        "--every", type=float, metavar="SECONDS", help="poll at this interval (default: 5 to 60 seconds)"
    )
    results = add_action(
        inner,
        "results",
        write_results,
        "Write the results so far",
        "Check a batch once, and write the results so far, one JSON object a line in the order of the "
        "requests. The exit code is 1 if a result is missing or is an error.",
    )
    answered = "Cancel a batch. Requests that were answered before are billed, and their results remain."
    for each in (wait, results, add_action(inner, "cancel", cancel_one, "Cancel a batch", answered)):
        each.add_argument("id", metavar="ID", help="the batch")
        add_models_file(each)


def _add_submit(inner: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    submit = add_action(
        inner,
        "submit",
        submit_one,
        "Send a batch, and print its id",
        "Send the requests in FILE, one JSON object a line: `prompt` or `messages`, and optionally `id`, "
        "`system`, `max_tokens`, `temperature`, `output_schema` and `options`. With --id, it is safe to "
        "repeat the command: no request is sent twice.",
    )
    submit.add_argument("file", type=Path, metavar="FILE", help="the file of requests, or - for stdin")
    add_model(submit)
    submit.add_argument("--id", metavar="ID", help="set the id of the batch (default: a new one)")
    submit.add_argument(
        "--max-tokens",
        type=positive,
        default=DEFAULT_TOKENS,
        metavar="N",
        help=f"limit the output of requests without max_tokens (default: {DEFAULT_TOKENS})",
    )
    repeated(submit, "--tag", type=one_tag, metavar="KEY=VALUE", help="add a tag to the calls (repeatable)")
    add_key(submit)
    add_models_file(submit)


def submit_one(arguments: argparse.Namespace) -> int:
    lines = _lines(arguments.file)
    model = load_registry(arguments.models_file).resolve(arguments.model).model.id
    requests = requests_in(lines, model=model, max_tokens=arguments.max_tokens)
    batch = on_engine(
        arguments,
        lambda engine: engine.create_batch(
            requests, model=model, batch_id=arguments.id, key=arguments.key, tags=dict(arguments.tag)
        ),
    )
    print_warnings(batch.warnings)
    echo(batch.id)
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
    note(f"to get its results: {shlex.join(['callboard', 'batch', 'wait', batch_id])}")


_BATCHES: list[Column[BatchLine]] = [
    Column("batch", lambda line: line.id, folds=True),
    Column("model", lambda line: line.model),
    Column("status", lambda line: line.status),
    figure("requests", lambda line: f"{line.requests}"),
    figure("answered", lambda line: f"{line.succeeded}"),
    figure("failed", lambda line: f"{line.failed}"),
    Column("planned", lambda line: _minute(line.planned_us), may_go=1),
]


def list_batches(arguments: argparse.Namespace) -> int:
    found = on_engine(arguments, lambda engine: engine.batches(arguments.limit))
    return write_rows(arguments.format, BatchLine, [*map(batch_line, found)], _BATCHES)


def _minute(ts_us: int) -> str:
    return datetime.fromtimestamp(ts_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")


def wait_for(arguments: argparse.Namespace) -> int:
    every = arguments.every
    polling = None if every is None else PollPolicy(first=every, longest=every, jitter=False)
    shown = ""

    def tell(state: BatchState) -> None:
        nonlocal shown
        status_text = summary(state.status, state.succeeded, state.total)
        if status_text != shown:
            note(status_text)
        shown = status_text

    async def work(engine: Engine) -> tuple[BatchResult, ...]:
        batch = await engine.resume_batch(arguments.id, polling=polling)
        print_warnings(batch.warnings)
        return (await batch.wait(on_progress=tell)).results

    try:
        results = on_engine(arguments, work)
    except (KeyboardInterrupt, SystemExit):
        note(f"batch {arguments.id} continues")
        _say_how_to_wait(arguments.id)
        raise
    return _write(results, missing=0)


def write_results(arguments: argparse.Namespace) -> int:
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
    async def work(engine: Engine) -> bool:
        return await (await engine.resume_batch(arguments.id)).cancel()

    if not on_engine(arguments, work):
        raise CallboardError(f"batch {arguments.id} has already ended")
    note(f"batch {arguments.id} is being cancelled; requests that are already answered stay in its results")
    _say_how_to_wait(arguments.id)
    return 0


# --- Requests and results ---

DEFAULT_TOKENS = 1024


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One request. It has a prompt or messages."""

    id: str | None = None  # the id, repeated in the result's line
    prompt: str | None = None
    messages: list[dict[str, object]] | None = None  # A whole conversation: objects with `role` and `content`
    system: str | None = None  # the system prompt
    max_tokens: int | None = None  # the maximum number of output tokens
    temperature: float | None = None  # the sampling temperature
    output_schema: JsonObject | None = None  # A JSON Schema for the reply
    options: dict[str, Json] = msgspec.field(default_factory=dict)
    """Options for one provider, by the name of a protocol or adapter."""


def requests_in(lines: Iterable[str], *, model: str, max_tokens: int) -> list[CanonicalRequest]:
    """Parse the requests in some lines. Empty lines are ignored."""
    found: list[CanonicalRequest] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=Line)
            found.append(_request(line, model, max_tokens))
        except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, CallboardError) as error:
            raise ConfigurationError(f"line {number} is not a request: {error}") from error
    return found


def _request(line: Line, model: str, max_tokens: int) -> CanonicalRequest:
    if (line.prompt is None) == (line.messages is None):
        raise ValueError("it needs either `prompt` or `messages`, not both")
    messages = as_messages(line.messages) if line.messages is not None else (Message.user(line.prompt or ""),)
    return CanonicalRequest(
        request_id=line.id or "",
        model=model,
        messages=messages,
        max_output_tokens=line.max_tokens or max_tokens,
        system_prompt=line.system,
        temperature=line.temperature,
        output_schema=line.output_schema,
        provider_options=line.options,
    )


class ResultLine(msgspec.Struct, omit_defaults=True):
    """One result. It has a text or an error."""

    id: str  # the id of the request
    text: str | None = None  # all text of the reply
    error: str | None = None  # why there is no reply
    error_type: str | None = None  # the class of the error
    stop_reason: str | None = None  # why the reply ended
    tool_calls: list[JsonObject] = []
    """The tool calls of the reply, each with ``name`` and ``input``."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_nano_usd: int | None = None  # the cost in nano-USD; omitted if it is unknown
    warnings: list[str] = []  # the codes of the warnings


def result_line(result: BatchResult) -> ResultLine:
    cost = None if result.cost is None else result.cost.nano_usd
    response = result.response
    if response is None:
        error = result.error
        kind = None if error is None else type(error).__name__
        return ResultLine(result.request_id, error=str(error), error_type=kind, cost_nano_usd=cost)
    return ResultLine(
        result.request_id,
        text=response.text,
        stop_reason=str(response.stop_reason),
        tool_calls=[{"name": call.name, "input": call.input} for call in response.tool_uses],
        input_tokens=response.usage.total_input_tokens,
        output_tokens=response.usage.output_tokens,
        cost_nano_usd=cost,
        warnings=[str(warning.code) for warning in response.warnings],
    )


class BatchLine(msgspec.Struct, frozen=True):
    """A line of `callboard batch list --json`."""

    id: str  # the batch's id
    model: str
    status: str  # the status at the last check
    requests: int
    succeeded: int  # the number of answered requests at the last check
    failed: int  # the number of failed requests at the last check
    counted: bool  # whether all results are in the trace
    planned_us: int  # when the batch was planned, in microseconds since the epoch


def batch_line(stored: StoredBatch) -> BatchLine:
    return BatchLine(
        id=stored.batch_id,
        model=stored.model,
        status=stored.status or ("submitted" if stored.submissions else "planned"),
        requests=sum(stored.parts),
        succeeded=stored.succeeded,
        failed=stored.failed,
        counted=stored.completed,
        planned_us=stored.planned_us,
    )


def summary(status: str, succeeded: int, total: int) -> str:
    """The state of a batch as text."""
    return f"{status.replace('_', ' ')}, {succeeded} of {plural(total, 'request')} answered"


# --- Background replies ---


class ReplyLine(msgspec.Struct, frozen=True):
    """A line of `callboard background list --json`: an open reply."""

    id: str  # the id of the reply's call
    model: str  # the model, `provider:name`
    session: str | None  # the id of the reply's session; None without one
    response: str  # the provider's id of the reply
    asked_us: int  # when the reply was requested, in microseconds since the Unix epoch


def add_background(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read replies requested with `-o background true`. Such a reply continues at its provider after "
        "your program has ended."
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    unread = "List the replies that are not read yet."
    listing = add_action(inner, "list", list_replies, "List replies that are not read yet", unread)
    add_format(listing, "for each reply")
    add_models_file(listing)
    read = add_action(
        inner,
        "read",
        read_reply,
        "Wait for a reply, and write its text",
        "Wait for a reply, and write its text. This sends no new request. If the session is stored, the "
        "reply is added to its history.",
    )
    read.add_argument("id", metavar="ID", nargs="?", help="the reply (default: the latest one)")
    add_models_file(read)


_REPLIES: list[Column[ReplyLine]] = [
    Column("reply", lambda line: line.id, folds=True),
    Column("model", lambda line: line.model, folds=True),
    Column("session", lambda line: line.session or "", folds=True),
    Column("asked", lambda line: _minute(line.asked_us), may_go=1),
]


def list_replies(arguments: argparse.Namespace) -> int:
    found = on_engine(arguments, lambda engine: engine.open_replies())
    lines = [
        ReplyLine(each.request_id, each.model, each.session_id, each.response_id, each.started_us)
        for each in found
    ]
    return write_rows(arguments.format, ReplyLine, lines, _REPLIES)


def read_reply(arguments: argparse.Namespace) -> int:
    async def work(engine: Engine) -> tuple[str, Cost | None]:
        found = await engine.open_replies()
        matching = [each for each in found if arguments.id in (None, each.request_id, each.response_id)]
        if not matching:
            named = "no reply" if arguments.id is None else f"no reply {arguments.id}"
            raise CallboardError(f"{named} is waiting: see `callboard background list`")
        return await _read_reply(engine, matching[-1])

    text, cost = on_engine(arguments, work, capture_content=True)
    echo(text)
    if cost is not None:
        note(f"{cost.usd} USD")
    return 0


async def _read_reply(engine: Engine, reply: OpenReply) -> tuple[str, Cost | None]:
    if reply.session_id is not None:
        try:
            session = await engine.resume(reply.session_id)
        except CallboardError as error:
            note(f"its session was not changed: {error}")
        else:
            message = await session.take_up(reply)
            return message.text, message.metadata.cost
    result = await engine.take_up(reply)
    return result.text, result.total_cost
