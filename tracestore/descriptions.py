"""Descriptions of a trace's tables, for files and servers: the output of `callboard sql --schema`.

The columns of the view `call_rows` have the names of fields of `CallRow`, flattened as in an export:
``usage.source`` is ``usage_source``. A column of the table `calls` has the same name, unless `Column.in_python`
has another.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from .call_columns import COLUMNS, CallRow


class Column(NamedTuple):
    meaning: str
    """The content of the column, in a sentence."""
    in_python: str | None = None
    """The name in Python and JSON, if it differs from the column's name."""


class Table(NamedTuple):
    meaning: str
    """The content of a row, in a sentence."""
    columns: Mapping[str, Column]


def _same(**meanings: str) -> dict[str, Column]:
    return {name: Column(meaning) for name, meaning in meanings.items()}


def _sentences() -> dict[str, str]:
    """The docstring of each field of `CallRow`, read from the source, because Python does not store them."""
    (row,) = ast.parse(textwrap.dedent(inspect.getsource(CallRow))).body
    assert isinstance(row, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(below.value.value).replace("`", "").replace("\n", " ")
        for field, below in pairwise(row.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


_SENTENCES = _sentences()


def _described(name: str) -> Column:
    """A column that is a field of `CallRow`, in a sentence with the format of the value."""
    found = COLUMNS[name]
    written = ", 1 or 0." if found.kind == "bool" else ", as JSON." if found.kind == "json" else "."
    return Column(_SENTENCES[name].removesuffix(".") + written)


_CALLS = {
    "id": Column(_SENTENCES["call_id"], "call_id"),
    "run": Column("The run that the call belongs to, as `runs.id`.", "run_id"),
    **{name: _described(name) for name in COLUMNS if name != "run_id"},
    "ts_us": Column("The time of its price, in microseconds UTC.", "started_us"),
    "day": Column("The day (UTC) of that time, in days since 1970-01-01.", "the dimension day"),
    "input_tokens": Column("Input tokens without cache reads and writes.", "usage.input_tokens"),
    "output_tokens": Column("Output tokens, including reasoning.", "usage.output_tokens"),
    "cached_input_tokens": Column(
        "Input tokens that were read from the provider's cache.", "usage.cached_input_tokens"
    ),
    "cache_creation_input_tokens": Column(
        "Input tokens that were written to the provider's cache.", "usage.cache_creation_input_tokens"
    ),
    "cache_creation_1h_input_tokens": Column(
        "Cache writes that last one hour.", "usage.cache_creation_1h_input_tokens"
    ),
    "reasoning_tokens": Column("The part of the output tokens used for reasoning.", "usage.reasoning_tokens"),
    "usage_source": Column(
        "The source of the tokens: reported, partial or estimated; NULL without usage.", "usage.source"
    ),
    "usage_raw": Column("The provider's own account of the tokens, as JSON.", "usage.raw"),
    "cost_nano": Column("The cost at call time, in nano-USD; NULL if unknown.", "at_call_time.nano_usd"),
    "cost_source": Column("The source of that cost: computed, provider or unpriced.", "at_call_time.source"),
    "cost_version": Column("The version of its prices.", "at_call_time.pricing_version"),
    "cost_reason": Column("The reason if it is unpriced, or an assumption.", "at_call_time.reason"),
    "service_tier": Column("The tier of service that was billed.", "usage.service_tier"),
    "usage_details": Column("Further counts of tokens and units, as a JSON object.", "usage.details"),
    "cost_computed_nano": Column(
        "The cost from the price table if the provider reported a cost, in nano-USD.",
        "at_call_time.computed_nano_usd",
    ),
    **_same(
        reserved_nano="The amount reserved by budgets, in nano-USD.",
        reserved_tokens="The tokens reserved by budgets.",
    ),
}

_NOT_IN_ROWS = {"run", "ts_us", "day", "reserved_nano", "reserved_tokens"}


_CURRENT = {
    "nano_usd": "The current cost, in nano-USD: from the current repricing, or from call time.",
    "source": "The source of that cost: computed, provider or unpriced.",
    "pricing_version": "The version of its prices.",
    "reason": "The reason if it is unpriced, or an assumption.",
    "computed_nano_usd": "The cost from the price table if the provider reported a cost, in nano-USD.",
}


def _call_rows() -> dict[str, Column]:
    """The columns of the view `call_rows`: those of `calls` by their names in an export, and the current cost."""
    then = {column.in_python: column.meaning for column in _CALLS.values()}
    total = "All input tokens: fresh, read from the cache and written to it."
    return {
        "call_id": Column(_CALLS["id"].meaning),
        "run_id": Column(_SENTENCES["run_id"]),
        **{
            name: column
            for name, column in _CALLS.items()
            if name != "id" and name not in _NOT_IN_ROWS and not name.startswith("cost_")
        },
        "total_input_tokens": Column(total, "usage.total_input_tokens"),
        **{f"cost_{name}": Column(meaning, f"cost.{name}") for name, meaning in _CURRENT.items()},
        **{
            f"at_call_time_{each}": Column(then[path], path)
            for each in _CURRENT
            if (path := f"at_call_time.{each}")
        },
    }


TABLES: Mapping[str, Table] = {
    "call_rows": Table(
        "An attempt of a call with its current cost and the names of Python, JSON and exports. Use this "
        "view for queries.",
        _call_rows(),
    ),
    "calls": Table("A stored attempt of a call, with the cost at call time.", _CALLS),
    "call_tags": Table(
        "A tag of a call, for queries by tag.",
        {
            **_same(key="The name of the tag.", value="The value of the tag."),
            "call_id": Column("The attempt, as `calls.id`."),
        },
    ),
    "call_cost": Table(
        "The cost of an attempt under a repricing.",
        {
            "run": Column("The repricing, as `reprice_run.id`."),
            "call_id": Column("The attempt, as `calls.id`."),
            "cost_nano": Column("The cost in nano-USD; NULL if it is unpriced.", "cost.nano_usd"),
            "reason": Column("The reason if it is unpriced, or an assumption.", "cost.reason"),
        },
    ),
    "current_run": Table(
        "A repricing with current costs. The first one with a row for a call applies.",
        _same(position="The order of evaluation, from the first.", run="The repricing."),
    ),
    "reprice_run": Table(
        "A repricing: its calls, its prices and its result.",
        _same(
            id="The number of the repricing.",
            version="The version of its prices.",
            filter="The filter of its calls, as JSON.",
            started_us="Its start, in microseconds UTC.",
            finished_us="Its end, in microseconds UTC; NULL while it is in progress.",
            calls="The number of its attempts.",
            unpriced="The number of attempts without a price.",
            sum_before="The sum of their costs before it, in nano-USD.",
            sum_after="The sum of their costs after it, in nano-USD.",
            last_call="The last processed attempt, as `calls.id`.",
            done="The number of processed attempts.",
            by_session="Whether sessions are compared, 1 or 0.",
            replaced="The repricings that were current before it, as JSON.",
            undone_us="When it was undone, in microseconds UTC; NULL if it was not.",
            estimated="The number of attempts with estimated usage.",
            unknown="The number of attempts with unknown usage.",
            base="The repricing that it is compared with.",
            finished_no="The order in which repricings ended.",
            in_flight="The number of attempts in progress at its end.",
            add_up_again="Whether its sums are still to be computed, 1 or 0.",
        ),
    ),
    "price_version": Table(
        "A price table. Its version is the hash of its rows.",
        _same(
            version="The first 12 digits of the hash.",
            label="Its name for people.",
            loaded_us="When it was added to the trace, in microseconds UTC.",
        ),
    ),
    "price_row": Table(
        "A row of a price table: rates in pico-USD for a token, by model and time.",
        _same(
            version="The price table.",
            position="The position of the row in it.",
            model="The model, provider:name, with '*' at the end for many.",
            valid_from="The start of its validity, in microseconds UTC.",
            valid_to="The end of its validity, in microseconds UTC.",
            above="The number of input tokens above which it applies.",
            input="The rate of uncached input.",
            output="The rate of output.",
            reasoning="The rate of reasoning, if it differs from output.",
            cache_read="The rate of input read from the cache.",
            cache_write_5m="The rate of input written to the cache for 5 minutes.",
            cache_write_1h="The rate of input written to the cache for an hour.",
            per_request="The price of a request, in nano-USD.",
            note="A remark, such as its source.",
            extra="Rates of further units, as JSON.",
            service_tier="The service tier to which it applies.",
            daily_from="The time of day from which it applies.",
            daily_to="The time of day until which it applies.",
            reference="Whether the row is only a reference for other rows, 1 or 0.",
        ),
    ),
    "price_alias": Table(
        "A name that has the prices of another model.",
        _same(
            version="The price table.",
            position="The place in it.",
            pattern="The name, with '*' at the end for many.",
            target="The model whose prices apply.",
            reference="Whether it belongs to the published prices, 1 or 0.",
        ),
    ),
    "sessions": Table(
        "A session, derived from its events.",
        _same(
            session_id="The session.",
            first_us="Its first event, in microseconds UTC.",
            last_us="Its latest event, in microseconds UTC.",
            model="The latest model.",
            tags="Its tags, as a JSON object.",
            name="Its name.",
        ),
    ),
    "runs": Table(
        "A run of an engine, from its start to its end or its loss.",
        _same(
            id="The number of the run in this trace.",
            run_id="The run.",
            first_us="Its first event, in microseconds UTC.",
            last_us="Its latest event, in microseconds UTC.",
            committed_seq="The number of its latest event that is stored.",
            ended_us="Its end, in microseconds UTC; NULL while it runs.",
            ending="How it ended: closed, or lost.",
            shipped_from="The trace file that it was copied from; only in a trace on a server.",
        ),
    ),
    "events": Table(
        "An event of the bus, as it was published. It never changes.",
        {
            "id": Column("The number of the event in the trace, in the order of storing."),
            "run": Column("The run, as `runs.id`.", "run_id"),
            **_same(
                seq="The number of the event in its run.",
                topic="Its topic, such as llm.call_completed.",
                ts_us="When it was published, in microseconds UTC.",
                mono_ns="The same time on a monotonic clock, in nanoseconds.",
                session_id="Its session.",
                turn_id="Its turn.",
                request_id="Its call.",
                attempt="Its attempt.",
                message_id="Its message.",
                caused_by="The request before it.",
                tags="Tags, as a JSON object.",
                data="Its other fields, as a JSON object.",
            ),
        },
    ),
    "session_messages": Table(
        "A message of a session, if content is captured.",
        _same(
            session_id="The session.",
            position="The place of the message in it, from 0.",
            run="Its run, as `runs.id`.",
            seq="The number of that event in its run.",
            ts_us="Its time, in microseconds UTC.",
            hash="The hash of its body in `content`; NULL if it must not be stored.",
            message_id="The message.",
            metadata="Model, usage and cost of a reply, as JSON.",
            withheld="The reason if its body is not stored.",
            epoch="The epoch of the session's owner in a cluster.",
        ),
    ),
    "session_setups": Table(
        "The latest setup of a session, if content is captured.",
        _same(
            session_id="The session.",
            run="Its run, as `runs.id`.",
            seq="The number of that event in its run.",
            ts_us="Its time, in microseconds UTC.",
            history="The number of messages before it.",
            hash="The hash of its body in `content`.",
            withheld="Why its system prompt is not stored.",
            epoch="The epoch of the session's owner in a cluster.",
        ),
    ),
    "content": Table(
        "A body of captured content, once for each hash.",
        _same(
            id="The number of the body.",
            hash="The SHA-256 of the body.",
            last_us="The time of its latest use, in microseconds UTC.",
            body="The body: JSON, or the bytes of an image, a sound or a document.",
        ),
    ),
}
"""The tables for queries, the most used ones first."""

BOOKKEEPING: Mapping[str, str] = {
    "content_search": "Words of captured content, for `callboard logs -q`; made by the first search.",
    "call_sums": "Sums of `calls` by day and model, kept in step; `callboard cost` reads them.",
    "repriced_sums": "Sums of `call_cost` by day and model, kept in step.",
    "reprice_sum": "Sums of a repricing by model, day and session, for its report.",
    "summed_calls": "The progress of the sums.",
    "imported_calls": "The revision of each imported call, pruned ones included.",
    "imported_files": "How far `callboard import` has read each file.",
    "erasures": "Deleted content, so that no copy restores it.",
    "events_before": "Events from before the table had partitions.",
    "events_after": "Events since then.",
    "ledger_accounts": "Budgets that nodes share.",
    "ledger_slices": "The parts of a shared budget granted to nodes.",
    "ledger_spent": "The spent part of a shared budget.",
    "nodes": "The nodes of a cluster.",
    "provider_probes": "The node that probes a provider.",
    "run_leases": "The running engines.",
    "session_owners": "The owner of each session.",
    "shipping": "The source file of shipped events.",
    "turn_endings": "The end of each turn in a cluster.",
    "pruned": "Rows deleted because of their age.",
    "pruning": "The time before which rows were deleted.",
    "gateway_clients": "The clients of a gateway; see `callboard clients`.",
    "gateway_keys": "The hashes of their keys.",
    "gateway_kept": "The parts of replies that clients can't send back, and stored Responses.",
    "gateway_changes": "Counts of changes, by which gateways in other processes notice them.",
    "schema_history": "The applied migrations of the schema.",
}
"""Callboard's internal tables. Their columns may change with any version."""
