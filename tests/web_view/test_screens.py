"""The data of the screens over a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from callboard import (
    ActorStarted,
    AuthError,
    CallRow,
    Engine,
    Message,
    OverloadedError,
    PriceRow,
    PriceTable,
    TraceStore,
    tool,
    web,
)
from callboard.engine.gateway.clients import issue_key
from callboard.engine.imports.importer import import_calls
from callboard.engine.web_view import subject as web_tail
from callboard.engine.web_view.app import WebView
from callboard.engine.web_view.calls import billed, first_ms, took_ms, waited_ms
from callboard.engine.web_view.operation import ended_us
from callboard.engine.web_view.subject import Tail
from callboard.tracestore import PostgresStore
from callboard.tracestore.gateway import Client
from tests.support.engines import keeping, registry, running
from tests.support.scripted import ADD, Say
from tests.support.session_files import Claude, write

from .serving import first, listening, served, sign_in, subscriptions

pytestmark = pytest.mark.anyio

CHEAP = PriceTable.from_rows([PriceRow(model="s:*", input=1_000_000, output=10_000_000)], "cheap")
DEAR = PriceTable.from_rows([PriceRow(model="s:*", input=9_000_000, output=90_000_000)], "dear")
PAID = 10 * 1000 + 5 * 10_000


async def until(true: Callable[[], bool]) -> None:
    """Let other tasks run until `true` returns True."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)


@asynccontextmanager
async def looking(view: WebView) -> AsyncIterator[httpx.AsyncClient]:
    """A signed-in browser, over a real server."""
    async with served(view) as address, httpx.AsyncClient(base_url=f"{address}/", timeout=20) as client:
        await sign_in(client, view)
        yield client


async def job(client: httpx.AsyncClient, **asked: Any) -> Any:
    """Run a repricing and return its last state."""
    async with listening(client, "api/repricing") as states:
        await first(states, "repricing")
        started = await client.post("api/reprice", json=asked)
        assert started.status_code == 202, started.text
        async for _, state, _ in states:
            if state["state"] in ("done", "failed"):
                return state
    raise AssertionError("the repricing never ended")


# -- Now


async def test_now_shows_a_call_while_it_runs(tmp_path: Path) -> None:
    """The call has its model, session and cost so far."""
    go = anyio.Event()
    async with running(Say("Hello", pause=go.wait), store=tmp_path / "t.db", prices=CHEAP) as (engine, _):
        async with looking(web(engine)) as client, listening(client, "api/now") as frames:
            idle = await first(frames, "now")
            assert (idle["total"], idle["state"]) == (0, "running")
            turn = asyncio.create_task(engine.session("s:m", name="mine").send("Hi"))
            busy = await first(frames, "now")
            while not busy["items"] or busy["items"][0]["stage"] != "asking":
                busy = await first(frames, "now")
            (item,) = busy["items"]
            assert (item["model"], item["session_name"], item["cost"]["nano_usd"]) == ("s:m", "mine", 10 * 1000)
            go.set()
            await turn
            while busy["total"]:
                busy = await first(frames, "now")
        await engine.flush()
        async with looking(web(engine)) as client, listening(client, "api/now") as frames:
            after = await first(frames, "now")
            assert after["today"]["cost_nano_usd"] == PAID
            assert [row["status"] for row in after["recent"]] == ["completed"]


async def test_a_click_cancels_a_turn() -> None:
    go = anyio.Event()
    async with running(Say("Hello", pause=go.wait)) as (engine, _):
        async with looking(web(engine)) as client, listening(client, "api/now") as frames:
            turn = asyncio.create_task(engine.session("s:m").send("Hi"))
            busy = await first(frames, "now")
            while not busy["items"]:
                busy = await first(frames, "now")
            cancel = {"id": busy["items"][0]["id"]}
            assert (await client.post("api/cancel", json=cancel)).status_code == 200
            with pytest.raises(Exception, match="cancelled"):
                await turn
            assert (await client.post("api/cancel", json=cancel)).status_code == 409


async def test_calls_of_other_processes_are_shown_from_the_trace(tmp_path: Path) -> None:
    """The view has only the trace of another process. It shows the calls in progress and the recent calls."""
    go = anyio.Event()
    async with running(Say("one"), Say("two", pause=go.wait), store=tmp_path / "t.db", prices=CHEAP) as (
        engine,
        _,
    ):
        await engine.session("s:m").send("Hi")
        turn = asyncio.create_task(engine.session("s:m").send("Hi"))
        await until(lambda: any(item.attempt for item in engine.in_progress().items))
        await engine.flush()
        async with looking(web(trace=tmp_path / "t.db")) as client, listening(client, "api/now") as frames:
            seen = await first(frames, "now")
            assert (seen["state"], len(seen["others"]), len(seen["recent"])) == ("trace", 1, 1)
            assert (await client.post("api/cancel", json={"id": "x"})).status_code == 409
        go.set()
        await turn


# -- Stream


async def collected(client: httpx.AsyncClient, path: str, **headers: str) -> tuple[list[Any], str]:
    """The events of a stream up to its end, and the id of the last frame."""
    found: list[Any] = []
    last = ""
    async with listening(client, path, **headers) as frames:
        async for name, data, frame_id in frames:
            if name == "events":
                found += data
                last = frame_id
            elif name == "end":
                break
    return found, last


def text_of(events: list[Any]) -> str:
    return "".join(event["text"] for event in events if event["type"] == "text.delta")


async def test_a_stream_is_read_from_its_start_and_from_any_event(tmp_path: Path) -> None:
    """A browser that connects again gets each later event once. A wrong position is refused."""
    words = [f"w{number} " for number in range(600)]
    async with keeping(tmp_path / "t.db", Say(*words)) as engine:
        stream = engine.session("s:m").stream("Hi")
        async with stream as turn:
            await turn.message()
        async with looking(web(engine)) as client:
            path = f"api/streams/{stream.stream_id}"
            whole, last = await collected(client, path)
            assert text_of(whole) == "".join(words)
            assert last == f"{stream.stream_id}:{len(words) + 3}"
            for seq in (0, 1, 300, 601, len(words) + 2):
                rest, _ = await collected(client, path, **{"last-event-id": f"{stream.stream_id}:{seq}"})
                assert text_of(rest) == "".join(words[max(seq, 0) :]), seq
                asked, _ = await collected(client, f"{path}?after={stream.stream_id}:{seq}")
                assert asked == rest
            for wrong in ("trn_other:1", "x", f"{stream.stream_id}:-1", f"{stream.stream_id}:9{'9' * 30}"):
                assert (await client.get(path, headers={"last-event-id": wrong})).status_code == 400
            beyond = {"last-event-id": f"{stream.stream_id}:99999"}
            assert (await client.get(path, headers=beyond)).status_code == 404
            assert (await client.get("api/streams/trn_other")).status_code == 404


async def test_a_lost_connection_during_a_stream_loses_and_repeats_no_text(tmp_path: Path) -> None:
    steps: list[anyio.Event] = [anyio.Event() for _ in range(40)]
    waits = iter(steps)
    words = [f"w{number} " for number in range(39)]
    async with keeping(tmp_path / "t.db", Say(*words, pause=lambda: next(waits, steps[-1]).wait())) as engine:
        stream = engine.session("s:m").stream("Hi")
        async with looking(web(engine)) as client, stream as turn:
            for step in steps[:10]:
                step.set()
            head: list[Any] = []
            async with listening(client, f"api/streams/{stream.stream_id}") as frames:
                async for name, data, frame_id in frames:
                    head += data if name == "events" else []
                    if len(text_of(head).split()) >= 5:
                        last = frame_id
                        break
            for step in steps[10:]:
                step.set()
            await turn.message()
            rest, _ = await collected(client, f"api/streams/{stream.stream_id}", **{"last-event-id": last})
    assert text_of(head + rest) == "".join(words)


@pytest.mark.parametrize("way", ["not captured", "redacted", "no scope", "shown on purpose", "captured"])
async def test_content_is_shown_only_if_it_is_captured_unchanged(tmp_path: Path, way: str) -> None:
    """Otherwise the page shows only the kinds of events. A host can show content with `show_content=True`."""
    secret = "the secret of the reply"
    options: dict[str, Any] = {"models": registry(Say(secret, calls=[("add", {"a": 1, "b": 2})]), Say("done"))}
    if way in ("redacted", "no scope", "captured"):
        options |= {"store": tmp_path / "t.db", "capture_content": True}
    else:
        options |= {"trace": False}
    if way == "redacted":
        options["redact"] = lambda message: Message.user("[gone]") if message.role == "user" else None
    scopes = ("view",) if way == "no scope" else ("view", "content", "change")
    async with Engine(**options) as engine:
        stream = engine.session("s:m", tools=[ADD]).stream("the secret of the question", max_tool_rounds=2)
        async with stream as turn:
            await turn.message()
        view = web(engine, scopes=scopes, show_content=True if way == "shown on purpose" else None)
        async with looking(view) as client:
            events, _ = await collected(client, f"api/streams/{stream.stream_id}")
            shown = way in ("shown on purpose", "captured")
            assert ("secret" in json.dumps(events)) is shown
            assert ("partial_json" in json.dumps(events)) is shown
            assert {event["type"] for event in events} >= {"text.delta", "tool.use_start", "message.complete"}
            if not shown:
                characters = sum(event.get("characters", 0) for event in events if event["type"] == "text.delta")
                assert characters == len(secret) + len("done")
            if engine.store is not None:
                session_id = (await engine.sessions())[0].session_id
                session = await client.get(f"api/sessions/{session_id}")
                assert ("secret" in session.text) is (way == "captured")
                preview = {"session_id": session_id, "model": "s:m"}
                code = (await client.post("api/preview", json=preview)).status_code
                assert code == (200 if way == "captured" else 403)


async def test_the_list_of_streams_has_the_lag_of_each_reader() -> None:
    """The lag of a reader that has read nothing is the number of events."""
    go = anyio.Event()
    async with running(Say("a", "b", pause=go.wait)) as (engine, _):
        stream = engine.session("s:m").stream("Hi")
        async with looking(web(engine)) as client, stream as turn:
            reader = engine.attach(stream.stream_id)
            go.set()
            await turn.message()
            (row,) = (await client.get("api/streams")).json()
            assert (row["stream_id"], row["state"], row["readers"][0]["lag"]) == (
                stream.stream_id,
                "kept",
                row["events"],
            )
            reader.close()


async def test_a_closed_page_leaves_no_reader_and_no_subscription(tmp_path: Path) -> None:
    go = anyio.Event()
    async with running(Say("a", "b", pause=go.wait), store=tmp_path / "t.db") as (engine, _):
        before = subscriptions(engine)
        view = web(engine)
        view._subject.tail = Tail(engine.bus, linger=0.0)
        stream = engine.session("s:m").stream("Hi")
        async with looking(view) as client, stream as turn:
            paths = ("now", "supervision", "providers", "events", "repricing", f"streams/{stream.stream_id}")
            async with asyncio.timeout(20):
                for path in paths:
                    async with listening(client, f"api/{path}") as frames:
                        await anext(frames)
                        assert subscriptions(engine) != before or "streams" in path
                    await until(
                        lambda: engine.streams.statistics().readers <= 1 and subscriptions(engine) == before
                    )
            go.set()
            await turn.message()


async def test_a_page_that_reads_nothing_does_not_slow_a_turn(tmp_path: Path) -> None:
    """The connection of that page stays full. The turn ends, and another page reads all of the text."""
    words = ["x" * 2000] * 3000
    async with keeping(tmp_path / "t.db", Say(*words)) as engine:
        view = web(engine)
        async with looking(view) as client:
            stream = engine.session("s:m").stream("Hi")
            async with stream as turn:
                host, port = str(client.base_url.host), client.base_url.port
                reader, writer = await asyncio.open_connection(host, port, limit=1024)
                cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
                request = (
                    f"GET /api/streams/{stream.stream_id} HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}\r\n\r\n"
                )
                writer.write(request.encode())
                await reader.read(200)  # the response has started, and is not read further
                await turn.message()
                whole, _ = await collected(client, f"api/streams/{stream.stream_id}")
                assert len(text_of(whole)) == 3000 * 2000
                writer.transport.abort()


# -- Events


async def test_events_are_sent_live_filtered_and_without_content(tmp_path: Path) -> None:
    """Each event has a short text for people. The history has the same events."""
    async with keeping(tmp_path / "t.db", Say("the secret")) as engine:
        async with (
            looking(web(engine)) as client,
            listening(client, "api/events?topics=llm.*,session.*") as frames,
        ):
            await first(frames, "ready")
            await engine.session("s:m").send("the secret of the question")
            seen: list[Any] = []
            while not any(event["topic"] == "session.turn_completed" for event in seen):
                seen += await first(frames, "events")
            assert {event["topic"].partition(".")[0] for event in seen} == {"llm", "session"}
            assert "secret" not in json.dumps(seen)
            completed = next(event for event in seen if event["topic"] == "llm.call_completed")
            assert "10 in, 5 out" in completed["words"]
            history = (await client.get("api/events/history?topics=llm.*")).json()
            assert [event["event_id"] for event in history] == [
                event["event_id"] for event in seen if event["topic"].startswith("llm.")
            ]


async def test_a_page_that_connects_again_gets_the_missed_events() -> None:
    """The page gets each event once, starting after its last event. The number of dropped events is sent."""
    replies = [Say(str(number)) for number in range(6)]
    async with running(*replies) as (engine, _):
        view = web(engine)
        async with looking(view) as client:
            async with listening(client, "api/events") as frames:
                await first(frames, "ready")
                await engine.session("s:m").send("Hi")
                head: list[Any] = []
                while not any(event["topic"] == "session.turn_completed" for event in head):
                    async for name, data, last in frames:  # noqa: B007
                        if name == "events":
                            head += data
                            break
            await engine.session("s:m").send("Hi")
            async with listening(client, "api/events", **{"last-event-id": last}) as frames:
                rest: list[Any] = []
                while sum(event["topic"] == "session.turn_completed" for event in rest) < 1:
                    rest += await first(frames, "events")
            seqs = [event["seq"] for event in head + rest]
            assert seqs == list(range(seqs[0], seqs[-1] + 1))
            async with listening(client, "api/events", **{"last-event-id": f"{engine.bus.run_id}-0"}) as frames:
                missed = await first(frames, "missed")
                assert missed["count"] == seqs[0] - 1
                assert [event["seq"] for event in await first(frames, "events")] == seqs
            async with listening(client, "api/events", **{"last-event-id": "run_other-3"}) as frames:
                assert await first(frames, "ready") == {}


async def test_the_ring_is_bounded_and_counts_lost_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_tail, "RING", 10)
    async with running() as (engine, _):
        tail = Tail(engine.bus)
        with tail.listening():
            lots = tail.after(None, lambda each: True)
            waiting = asyncio.ensure_future(anext(lots))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for _ in range(50):
                engine.bus.dead_letter("x", object(), "stopped")
                engine.bus.publish(ActorStarted(actor="x"))
            got = await waiting
            assert len(got.events) <= 10
            assert got.missed + len(got.events) == 50
            await lots.aclose()  # type: ignore[attr-defined]


async def test_the_events_of_a_trace_continue_by_their_numbers(tmp_path: Path) -> None:
    """Another engine writes the trace. A page that connects again gets each event once."""
    async with running(Say("one"), Say("two"), store=tmp_path / "t.db") as (engine, _):
        await engine.flush()
        async with looking(web(trace=tmp_path / "t.db")) as client:
            async with listening(client, "api/events?topics=llm.*") as frames:
                await first(frames, "ready")
                await engine.session("s:m").send("Hi")
                await engine.flush()
                head: list[Any] = []
                async for name, data, last in frames:  # noqa: B007
                    head += data if name == "events" else []
                    if len(head) >= 2:
                        break
            await engine.session("s:m").send("Hi")
            await engine.flush()
            rest: list[Any] = []
            async with listening(client, "api/events?topics=llm.*", **{"last-event-id": last}) as frames:
                while len(rest) < 2:
                    rest += await first(frames, "events")
    assert [event["topic"] for event in head + rest] == ["llm.call_started", "llm.call_completed"] * 2


async def test_dead_letters_are_shown() -> None:
    """A dead letter has the type of its message, and no content."""
    async with running() as (engine, _):
        engine.bus.dead_letter("an actor", {"secret": 1}, "mailbox full")
        async with looking(web(engine)) as client:
            found = (await client.get("api/dead-letters")).json()
            assert (found["total"], found["letters"][0]["message_type"]) == (1, "dict")
            assert "secret" not in json.dumps(found)


# -- Call, Costs


async def test_a_call_has_its_attempts_and_a_bill_for_each_price_table(tmp_path: Path) -> None:
    """The lines of each bill add up to its sum."""
    async with running(Say("Hello"), store=tmp_path / "t.db", prices=CHEAP) as (engine, _):
        await engine.session("s:m").send("Hi")
        await engine.reprice(DEAR)
        async with looking(web(engine)) as client:
            (row,) = (await client.get("api/calls?status=completed")).json()
            found = (await client.get(f"api/calls/{row['request_id']}")).json()
            assert [attempt["status"] for attempt in found["attempts"]] == ["completed"]
            bills = {bill["label"]: bill for bill in found["bills"][0]}
            assert {label: bill["nano_usd"] for label, bill in bills.items()} == {"cheap": PAID, "dear": 9 * PAID}
            for bill in bills.values():
                assert sum(line["pico_usd"] for line in bill["lines"]) == bill["nano_usd"] * 1000
                assert [line["name"] for line in bill["lines"]] == ["input", "output"]
            assert {event["topic"] for event in found["events"]} >= {"llm.call_started", "llm.call_completed"}
            assert (await client.get("api/calls/req_other")).status_code == 404


async def test_a_call_shows_its_tree_of_turns(tmp_path: Path) -> None:
    """Each turn has its own cost and the cost with its children. The page of the session shows the same tree."""
    go = anyio.Event()

    @tool
    async def delegate() -> str:
        """Delegate."""
        return (await engine.generate("s:m", "Go.")).text

    script = Say(calls=[("delegate", {})]), Say("child", pause=go.wait), Say("done")
    async with running(*script, store=tmp_path / "t.db", prices=CHEAP) as (engine, _):
        session = engine.session("s:m", tools=[delegate])
        async with looking(web(engine)) as client:
            async with listening(client, "api/now") as frames:
                turn = asyncio.create_task(session.send("Go."))
                busy = await first(frames, "now")
                while len(busy["items"]) < 2:
                    busy = await first(frames, "now")
            go.set()
            await turn
            rows = (await client.get("api/calls")).json()
            below = next(row for row in rows if row["depth"] == 1)
            (tree,) = (await client.get(f"api/calls/{below['request_id']}")).json()["trees"]
            of_session = (await client.get(f"api/sessions/{session.id}")).json()["trees"]
    assert [item["depth"] for item in busy["items"]] == [0, 1]
    assert [(node["depth"], node["own"]["nano_usd"], node["whole"]["nano_usd"]) for node in tree] == [
        (0, 2 * PAID, 3 * PAID),
        (1, PAID, PAID),
    ]
    assert of_session == [tree]


WAYS = ("an engine", "a file", "a store of the host", "the address of a server")


@pytest.mark.parametrize("way", WAYS)
async def test_costs_are_compared_and_a_repricing_is_done_and_undone(
    way: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A dry run changes no sum. A repricing changes the current sums, and undoing it restores them.

    The view has an engine, or opens the trace for the change. A store of the host stays open.
    """
    path = request.getfixturevalue("postgres_dsn") if way == WAYS[3] else tmp_path / "t.db"
    store = PostgresStore(path) if way == WAYS[3] else path
    async with running(*[Say("Hello")] * 3, store=store, prices=CHEAP) as (engine, _):
        for _ in range(3):
            await engine.session("s:m", tags={"team": "a"}).send("Hi")
        await engine.reprice(DEAR)
        await engine.undo_reprice()
        if way == "an engine":
            await costs_there_and_back(web(engine))
    if way == "a store of the host":
        async with TraceStore(path) as opened:
            await costs_there_and_back(web(trace=opened))
            assert opened.is_open
    elif way != "an engine":
        view = web(trace=path)
        await costs_there_and_back(view)
        async with looking(view) as client, listening(client, "api/now") as frames:
            assert (await first(frames, "now"))["today"]["calls"] == 3
            me = (await client.get("api/me")).text
            assert (str(path) in me, "postgresql://" in me) == (way == "a file", way != "a file")


async def test_clients_of_a_gateway_are_shown_with_their_spending(tmp_path: Path) -> None:
    """The view has an engine or only a trace. The page shows no part of a key."""
    path = tmp_path / "trace.db"
    _, key = issue_key("acme", 1)
    acme = Client(name="acme", budget_nano_usd=10 * PAID, window=None, models=("gpt-*",), requests_per_minute=9)
    async with running(*[Say("x")] * 2, store=path, prices=CHEAP) as (engine, _):
        await engine.store.gateway.add_client(acme, key)  # type: ignore[union-attr]
        for _ in range(2):
            await engine.generate("s:m", "Hi", tags={"client": "acme"})
        for view in (web(engine), web(trace=path)):
            async with looking(view) as client:
                answer = await client.get("api/clients")
                (row,) = answer.json()
                assert (row["name"], row["models"], row["requests_per_minute"]) == ("acme", ["gpt-*"], 9)
                assert [row[name] for name in ("calls", "cost_nano_usd", "spent_nano_usd", "left_nano_usd")] == [
                    *(2, 2 * PAID, 2 * PAID, 8 * PAID)
                ]
                assert key.prefix not in answer.text


async def costs_there_and_back(view: WebView) -> None:
    """Check the costs, a dry run, a repricing and its undo, on three calls at the cheap prices."""
    async with looking(view) as client:
        tables = (await client.get("api/prices")).json()
        dear = next(table["version"] for table in tables["tables"] if table["label"] == "dear")

        async def sums(by: str = "model") -> list[tuple[Any, ...]]:
            rows = (await client.get(f"api/costs?by={by}&left=call-time&right=")).json()
            return [(row["key"], row["calls"], row["left"]["nano_usd"], row["right"]["nano_usd"]) for row in rows]

        assert await sums() == [(["s:m"], 3, 3 * PAID, 3 * PAID)]
        tried = await job(client, version=dear, dry_run=True)
        assert (tried["state"], tried["report"]["sum_after_nano_usd"]) == ("done", 27 * PAID)
        assert await sums() == [(["s:m"], 3, 3 * PAID, 3 * PAID)]
        done = await job(client, version=dear, dry_run=False)
        assert (done["done"], done["last"], done["changed"] > 0) == (3, 3, True)
        for by in ("model", "tag:team", "provider"):
            assert [row[1:] for row in await sums(by)] == [(3, 3 * PAID, 27 * PAID)]
        undone = await client.post("api/undo", json={})
        assert undone.status_code == 200, undone.text
        assert await sums() == [(["s:m"], 3, 3 * PAID, 3 * PAID)]
        assert (await client.post("api/undo", json={})).status_code == 409
        failed = await job(client, version="0123456789ab", dry_run=True)
        assert (failed["state"], "version" in failed["error"]) == ("failed", True)
        filtered = await job(client, version=dear, dry_run=True, where={"model": "other:*"})
        assert filtered["report"]["calls"] == 0


async def test_one_repricing_runs_at_a_time(tmp_path: Path) -> None:
    """A second repricing and an undo are refused. A page that is opened later shows the first."""
    async with running(Say("Hello"), store=tmp_path / "t.db", prices=CHEAP) as (engine, _):
        await engine.session("s:m").send("Hi")
        view = web(engine)
        go = asyncio.Event()

        async def slow(*_: object, **__: object) -> Any:
            await go.wait()
            raise AssertionError("not reached")

        async with looking(view) as client:
            view._repricings._on_engine = slow  # type: ignore[method-assign]
            assert (await client.post("api/reprice", json={"version": "published"})).status_code == 202
            assert (await client.post("api/reprice", json={"version": "published"})).status_code == 409
            assert (await client.post("api/undo", json={})).status_code == 409
            async with listening(client, "api/repricing") as states:
                assert (await first(states, "repricing"))["state"] == "running"
            task = view._repricings._task
            assert task is not None
            task.cancel()


async def test_only_an_engine_sets_the_price_table_of_new_calls(tmp_path: Path) -> None:
    """A trace without an engine has no new calls."""
    async with running(Say("a"), Say("b"), store=tmp_path / "t.db", prices=CHEAP) as (engine, _):
        await engine.session("s:m").send("Hi")
        await engine.reprice(DEAR, dry_run=True)
        await engine.reprice(DEAR)
        async with looking(web(trace=tmp_path / "t.db")) as client:
            asked = {"version": DEAR.version, "dry_run": False, "for_new_calls": True}
            assert (await client.post("api/reprice", json=asked)).status_code == 409
        async with looking(web(engine)) as client:
            await job(client, **asked)
        message = await engine.session("s:m").send("Hi")
        assert message.metadata is not None
        assert message.metadata.cost.nano_usd == 9 * PAID


# -- Session, Stage, Providers


async def test_a_session_shows_its_messages_its_swaps_and_a_preview(tmp_path: Path) -> None:
    """The page shows the stored messages. A preview of a request for another model sends nothing."""
    models = registry(Say("one"), Say("two"), t=[Say("three")])
    async with keeping(tmp_path / "t.db", models=models) as engine:
        session = engine.session("s:m", system_prompt="Be kind.", name="mine")
        await session.send("first")
        session.model = "t:m"
        await session.send("second")
        async with looking(web(engine)) as client:
            (listed,) = (await client.get("api/sessions")).json()
            assert (listed["name"], listed["open"], listed["stored"]["turns"]) == ("mine", True, 2)
            found = (await client.get(f"api/sessions/{session.id}")).json()
            assert [message["role"] for message in found["messages"]] == ["user", "assistant"] * 2
            assert found["messages"][1]["content"][0]["text"] == "one"
            assert found["system_prompt"] == "Be kind."
            assert [(swap["previous"], swap["current"]) for swap in found["swaps"]] == [("s:m", "t:m")]
            assert len(found["calls"]) == 2
            shown = (await client.post("api/preview", json={"session_id": session.id, "model": "s:m"})).json()
            assert (shown["model"], shown["body"]) == ("s:m", "req_preview")
            wrong = await client.post("api/preview", json={"session_id": session.id, "model": "nobody:m"})
            assert wrong.status_code == 409
            assert "s:m" in [each["id"] for each in (await client.get("api/models")).json()]
            assert (await client.get("api/sessions/ses_other")).status_code == 404


async def test_an_imported_session_shows_its_origin_and_no_invented_times(tmp_path: Path) -> None:
    """Two imports brought one turn. The imported file has no latencies."""
    made = Claude()
    path = write(made.file(tmp_path / "projects"), [made.prompt(), made.reply(1)])
    engine = keeping(tmp_path / "t.db", models=registry(Say("x")), prices=CHEAP)
    async with engine, looking(web(engine)) as page:
        async with TraceStore(tmp_path / "t.db") as store:
            await import_calls(store, "claude-code", tmp_path / "projects", prices=CHEAP)
            write(path, [made.reply(2)], append=True)
            await import_calls(store, "claude-code", tmp_path / "projects", prices=CHEAP)
        shown = (await page.get(f"api/sessions/{made.session}")).json()
        assert shown["tags"] == {"origin": "claude-code", "project": "/src/shop", "branch": "main"}
        (turn,) = shown["turns"]
        assert (turn["status"], len(turn["bars"])) == ("imported", 2)
        assert {call["took_ms"] for call in shown["calls"]} == {None}


async def test_the_screen_supervision_shows_the_tree_and_the_last_crash() -> None:
    """An adapter that crashed runs again. The screen shows its last crash."""
    async with running(Say("Hello")) as (engine, _):
        await engine.session("s:m").send("Hi")
        engine._runtime.adapters["s"].ref.tell("nonsense")
        async with looking(web(engine)) as client, listening(client, "api/supervision") as frames:
            async with asyncio.timeout(20):
                while True:
                    seen = await first(frames, "supervision")
                    (adapter,) = seen["tree"]["children"][-1]["supervisor"]["children"]
                    if adapter["restarts"]:
                        break
        assert adapter["name"] == "s"
        assert adapter["last_crash"]
        assert seen["bus"]["subscriptions"]


async def test_the_providers_show_their_states_and_the_reason_of_a_rejection(tmp_path: Path) -> None:
    """A provider that failed five times is unavailable until its probe. The next call goes to another provider."""
    failing = [Say(fails=OverloadedError("full", provider="s")) for _ in range(5)]
    models = registry(*failing, t=[Say("here")] * 6)
    async with Engine(models=models, store=tmp_path / "t.db") as engine:
        for _ in range(6):
            await engine.session(["s:m", "t:m"]).send("Hi")
        await engine.flush()
        for view in (web(engine), web(trace=tmp_path / "t.db")):
            async with looking(view) as client, listening(client, "api/providers") as frames:
                seen = await first(frames, "providers")
            known = {(each["provider"], each["model"]): each for each in seen["availability"]}
            assert known["s", None]["state"] == "unavailable"
            assert known["s", None]["retry_at_us"] > seen["ts_us"]
            assert ("s:m", "t:m") in [(each["model"], each["taken"]) for each in seen["rejected"]]
            assert "unavailable" in seen["rejected"][0]["why"]


# -- a mounted view, a closed engine, a view without a trace


async def test_the_view_is_mounted_below_a_path_of_a_host(tmp_path: Path) -> None:
    """All addresses in the page are relative."""
    async with running(Say("Hello"), store=tmp_path / "t.db") as (engine, _):
        view = web(engine)
        app = Starlette(routes=[Mount("/tools/callboard", view)])
        async with served(app) as address, httpx.AsyncClient(base_url=f"{address}/tools/callboard/") as client:
            page = await client.get(f"{address}/tools/callboard", follow_redirects=True)
            assert (page.status_code, str(page.url)) == (200, f"{address}/tools/callboard/")
            for path in (
                "static/app.js",
                "static/vendor/htm-preact.mjs",
                "static/app.css",
                "static/screens/now.js",
            ):
                assert (await client.get(path)).status_code == 200
            await sign_in(client, view)
            async with listening(client, "api/now") as frames:
                assert (await first(frames, "now"))["state"] == "running"
        assert view.sign_in_url(f"{address}/tools/callboard").startswith(f"{address}/tools/callboard/#token=")


async def test_unchanged_files_are_not_sent_again() -> None:
    """The entity tag of a file shows whether it changed."""
    async with running() as (engine, _), looking(web(engine)) as client:
        answer = await client.get("static/app.css")
        again = await client.get("static/app.css", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_a_new_and_a_closed_engine_are_shown(tmp_path: Path) -> None:
    """The first page starts a new engine. A closed engine is read from its trace, and its frames end."""
    engine = Engine(models=registry(Say("Hello")), store=tmp_path / "t.db")
    async with looking(web(engine)) as client:
        async with listening(client, "api/now") as frames:
            assert (await first(frames, "now"))["state"] == "running"
            await engine.session("s:m").send("Hi")
            await engine.aclose()
            async with asyncio.timeout(20):
                async for _ in frames:
                    pass
        assert len((await client.get("api/calls")).json()) == 1
        assert len((await client.get("api/sessions")).json()) == 1
        assert (await client.post("api/cancel", json={"id": "x"})).status_code == 409


async def test_without_a_trace_the_past_is_refused() -> None:
    """The screen *Now* works without a trace."""
    async with running(Say("Hello")) as (engine, _), looking(web(engine)) as client:
        assert (await client.get("api/me")).json()["trace"] is None
        for path in ("api/calls", "api/costs?by=day", "api/prices"):
            answer = await client.get(path)
            assert (answer.status_code, "no trace" in answer.json()["error"]) == (409, True)
        async with listening(client, "api/now") as frames:
            assert (await first(frames, "now"))["today"] is None


async def test_frames_end_when_the_trace_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has one warning about the loss."""
    path = tmp_path / "t.db"
    async with running(Say("Hello"), store=path) as (engine, _):
        await engine.session("s:m").send("Hi")
    async with looking(web(trace=path)) as client:
        path.write_bytes(b"this is no trace any more" * 100)
        async with listening(client, "api/now") as frames, asyncio.timeout(20):
            assert [frame async for frame in frames] == []
        assert (await client.get("api/calls")).status_code == 409
    assert [record.levelname for record in caplog.records if "frames_ended" in record.message] == ["WARNING"]


async def test_closing_a_view_ends_the_streams_of_its_pages() -> None:
    """A server that shuts down would wait for these streams. The engine keeps running."""
    async with running() as (engine, _):
        view = web(engine)
        async with looking(view) as client, listening(client, "api/now") as frames:
            await first(frames, "now")
            view.close()
            async with asyncio.timeout(20):
                assert [name async for name, _, _ in frames if name != "now"] == []
            assert engine.statistics().state == "running"


# -- Attempts, turns and filters


async def test_all_screens_agree_on_the_time_and_the_cost_of_an_attempt(tmp_path: Path) -> None:
    """*Now*, *Calls* and *Session* give the same times. A refused attempt is billed as `nothing`."""
    refused = AuthError("no", provider="s", request_id="r", provider_status=401, retryable=False)
    async with running(Say("Hi"), Say(fails=refused), store=tmp_path / "t.db", prices=CHEAP) as (engine, _):
        session = engine.session("s:m")
        await session.send("Hi")
        with pytest.raises(AuthError):
            await session.send("Hi")
        await engine.flush()
        async with looking(web(engine)) as client, listening(client, "api/now") as frames:
            lists = [
                (await first(frames, "now"))["recent"],
                (await client.get("api/calls")).json(),
                (await client.get(f"api/sessions/{session.id}")).json()["calls"],
            ]
            for rows in lists:
                assert [row["billed"] for row in rows] == ["nothing", "known"]
                assert all(row["took_ms"] == (row["finished_us"] - row["started_us"]) // 1000 for row in rows)


def attempt(**fields: object) -> CallRow:
    """A row of the trace with the fields of the test."""
    known = dict.fromkeys(CallRow.__struct_fields__) | {"attempt": 1, "status": "completed"}
    return CallRow(**(known | fields))  # type: ignore[arg-type]


def test_a_wait_is_the_part_of_the_latency_before_the_attempt() -> None:
    """Latency and first token count from the start of the call. A rounded latency adds no wait."""
    rounded = attempt(started_us=5_000_000, finished_us=5_001_600, latency_ms=2)
    assert (took_ms(rounded), waited_ms(rounded)) == (1, 0)
    row = attempt(started_us=5_000_000, finished_us=6_000_000, latency_ms=3000, first_token_ms=2400)
    assert (took_ms(row), waited_ms(row), first_ms(row)) == (1000, 2000, 400)
    assert billed(attempt(status="started", started_us=1)) == "open"
    assert billed(attempt(status="failed", error_class="auth", provider_status=401)) == "nothing"
    assert billed(attempt(status="cancelled", error_class="cancelled")) == "unknown"


def test_recent_calls_are_in_the_order_of_their_ends() -> None:
    """A long call that started first and ended last comes first."""
    long = attempt(request_id="long", started_us=1, finished_us=900)
    quick = attempt(request_id="quick", started_us=5, finished_us=50)
    assert sorted([quick, long], key=ended_us, reverse=True) == [long, quick]


async def test_events_are_filtered_by_session_tag_and_time(tmp_path: Path) -> None:
    """Each filter works alone on the history. A time that is no number is refused."""
    async with running(Say("One"), Say("Two"), store=tmp_path / "t.db") as (engine, _):
        one = engine.session("s:m", tags={"team": "search"})
        await one.send("Hi")
        await engine.session("s:m").send("Hi")
        async with looking(web(engine)) as client:

            async def found(**asked: str) -> list[dict[str, object]]:
                events: list[dict[str, object]] = (await client.get("api/events/history", params=asked)).json()
                return events

            everything = await found()
            of_session = await found(session_id=one.id)
            assert of_session == [each for each in everything if each.get("session_id") == one.id] != []
            tagged = await found(tag="team:search")
            assert {str(each["topic"]) for each in tagged} >= {"llm.call_started", "llm.call_completed"}
            assert all(each["tags"] == {"team": "search"} for each in tagged)
            middle = str(everything[len(everything) // 2]["ts_us"])
            before, after = await found(until=middle), await found(since=middle)
            assert len(before) + len(after) == len(everything)
            assert (await client.get("api/events/history", params={"since": "now"})).status_code == 400
