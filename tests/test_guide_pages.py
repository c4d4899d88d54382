"""The programs of the guide's pages do what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast, get_args

import anyio
import httpx
import msgspec
import pytest

from callboard import (
    AdapterConfig,
    AdapterEntry,
    Approved,
    EmbeddingOptions,
    Engine,
    ImageOptions,
    ModelRegistry,
    PriceTable,
    RetryPolicy,
    SessionMessageAppended,
    ToolContext,
    ToolResultBlock,
    VideoOptions,
    ViewEvent,
    run_sync,
    set_default_engine,
)
from callboard.adapters import CanonicalResponse
from callboard.adapters.embeddings import INPUT_TYPES
from callboard.adapters.provider import adapter_types
from callboard.adapters.providers.local.child import find_model
from callboard.engine.models.configured import read_models_yaml
from callboard.engine.operations.embeddings_and_images import require_same_space
from callboard.engine.routing.candidates import expand
from examples.near_duplicates import nearest_pairs
from examples.tools import Folder, assist
from examples.video import create, fetch, wait_for

from .book.snippets import DOCS, codes, definitions
from .support.batch_engines import engine_at as batch_engine_at
from .support.batch_engines import name_of
from .support.batch_server import BatchServer, batch_server
from .support.engines import keeping, registry, running
from .support.media_server import MediaServer, media_server, png
from .support.scripted import Say
from .support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
Program = Callable[..., Awaitable[object]]
anyio_backend = runs_on("asyncio")


# The functions of three pages of the book do what the pages describe. tests/book runs the README.


ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("sessions.md", "trace.md", "routing.md")]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Program]:
    """The names that the pages' Python blocks define. The tests run the code that the blocks would run
    immediately.
    """
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    found = {name: value for page in PAGES for name, value in definitions(page).items()}
    return cast("dict[str, Program]", found)


async def test_a_session_changes_its_tools_and_its_model_and_is_forked(
    programs: dict[str, Program], capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's names belong to scripted models."""
    async with Engine(models=named_like_the_local_ones(), trace=False) as engine:
        await programs["talk"](engine)
    said, forked = capsys.readouterr().out.splitlines()
    assert said == "1 0", "local models cost nothing"
    assert forked.endswith(" 2")


async def test_costs_and_repricing_are_printed(
    programs: dict[str, Program], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The two short functions work on any engine with a trace."""
    async with Engine(models=registry(Say("Hello")), store=tmp_path / "trace.db") as engine:
        await engine.session("s:m").send("Hi")
        await programs["costs"](engine)
        await programs["reprice"](engine)
    assert capsys.readouterr().out == "s:m 15 None\n0 -> 0\n"


async def test_the_router_chooses_and_reloads(
    programs: dict[str, Program], capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's names belong to scripted models. The output shows the chosen candidate."""
    async with Engine(models=named_like_the_local_ones(), trace=False) as engine:
        await programs["elsewhere"](engine)
    assert "Candidate(model='local-chat:m', rejected=None," in capsys.readouterr().out


def named_like_the_local_ones() -> ModelRegistry:
    scripted = {name: [Say("1"), Say("2")] for name in ("local-chat", "local-messages", "local-responses")}
    plain = registry(**scripted)
    models = {
        name: msgspec.structs.replace(model, aliases=(model.adapter,))
        for name, model in plain.models.items()
        if model.adapter != "s"
    }
    return ModelRegistry(plain.adapters, models)


async def test_calls_are_watched_live_and_again(
    programs: dict[str, Program], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A subscription receives the call's events, and a replay of the trace has the same topics."""
    async with Engine(models=registry(Say("Hello")), store=tmp_path / "trace.db") as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(programs["watch"], engine)
            await anyio.wait_all_tasks_blocked()
            session = engine.session("s:m")
            await session.send("Hi")
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        live = capsys.readouterr().out
        await engine.flush()
        await programs["again"](engine, session.id)
    again = capsys.readouterr().out
    for topic in ("llm.call_started", "llm.call_completed"):
        assert topic in live
        assert topic in again


# The programs of docs/how-to/batches.md run unchanged, against a server that records its jobs.


BATCHES_PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "batches.md"


@pytest.fixture
def batch_provider(tmp_path: Path) -> Iterator[BatchServer]:
    with batch_server(tmp_path) as running:
        yield running


async def test_the_programs_of_the_page_send_a_batch_and_read_its_results(
    batch_provider: BatchServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other engines find the batch again, and no second job is created."""
    page: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", BATCHES_PAGE.read_text(encoding="utf-8"), re.DOTALL)), page)
    store = tmp_path / "trace.db"
    tickets = {"T1": "the light flickers", "T2": "fail"}
    async with batch_engine_at(batch_provider.url, store) as engine:
        pending = page["requests_for"](tickets, name_of("openai"))
        batch = await engine.create_batch(pending, batch_id="tickets-2026-11-23")
        while not (await batch.refresh()).done:
            pass
        found = await page["summarise"](engine, tickets, name_of("openai"))
        assert found["T1"] == "answer to Summarise in one sentence: the light flickers"
        assert not isinstance(found["T2"], CanonicalResponse | str)
    async with batch_engine_at(batch_provider.url, store) as engine:
        await page["tomorrow"](engine)
    async with batch_engine_at(batch_provider.url, store) as engine:
        await page["write_down"](engine, "tickets-2026-11-23", tmp_path / "results")
    assert [line.split("\t")[0] for line in (tmp_path / "results").read_text().splitlines()] == ["T1", "T2"]
    assert len(batch_provider.books()["jobs"]) == 1
    told = capsys.readouterr().out
    assert "completed 1 of 2" in told
    assert "tickets-2026-11-23 openai:gpt-5-mini completed" in told


# The programs of docs/embeddings.md run unchanged.


EMBEDDINGS_PAGE = DOCS / "embeddings.md"


@pytest.fixture
def embedding_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Program]:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    return cast("dict[str, Program]", definitions(EMBEDDINGS_PAGE))


async def test_the_first_program_finds_what_is_alike(
    embedding_programs: dict[str, Program], capsys: pytest.CaptureFixture[str]
) -> None:
    if find_model() is None:
        pytest.skip("the local model's weights are not installed")
    pytest.importorskip("xllamacpp", reason="the local model's server has no wheel for this machine")
    await embedding_programs["main"]()
    same, alike, other, summary = capsys.readouterr().out.splitlines()
    assert same.startswith("1.00 ")
    assert float(alike.split()[0]) > float(other.split()[0])
    assert re.fullmatch(r"576 \d+ 0", summary), summary


async def test_the_example_shows_the_nearest_pairs_first() -> None:
    """The function is tested on known vectors, without an engine."""
    vectors = [array("f", numbers) for numbers in ([1, 0], [0, 1], [2, 0.1])]
    pairs = nearest_pairs(vectors)
    assert [(one, other) for _, one, other in pairs] == [(0, 2), (1, 2), (0, 1)]
    assert pairs[0][0] == pytest.approx(0.99875, abs=1e-4)


async def test_what_went_wrong_names_the_texts(
    embedding_programs: dict[str, Program],
) -> None:
    entry = AdapterEntry(name="p", type="tests.cli.adapters:PoorEmbedder", config=AdapterConfig())
    async with Engine(models=ModelRegistry({"p": entry}, {}), trace=False) as engine:
        found = await embedding_programs["what_went_wrong"](engine, ["fine", "bad"], "p:m")
        assert found == ["bad: I don't like it"]
        assert await embedding_programs["what_went_wrong"](engine, ["fine"], "p:m") == []


def test_the_models_file_is_one_and_its_fallback_is_of_the_same_space(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(codes(EMBEDDINGS_PAGE, "yaml")[0])
    registry = read_models_yaml(path, {"OPENAI_API_KEY": "x", "AZURE_API_KEY": "y"})
    plan = expand(registry, "embed")
    require_same_space(plan)
    named = plan.named
    assert [each.model for each in named] == ["openai:text-embedding-3-small", "azure:my-deployment"]


def test_every_option_input_type_and_adapter_type_that_embeds_is_named() -> None:
    text = EMBEDDINGS_PAGE.read_text(encoding="utf-8")
    for name in (*EmbeddingOptions.__annotations__, *INPUT_TYPES, "bedrock", "cohere", "voyage"):
        assert f"`{name}`" in text, name
    for name in re.findall(r"^\| `(\w+)` \| .* \| .* \|$", text, re.MULTILINE):
        assert name in adapter_types()


# The programs of docs/generate.md, and the example, run unchanged.


def defined() -> dict[str, Any]:
    """The names that the page's blocks define."""
    return definitions(DOCS / "generate.md")


def engine(*replies: Say) -> Engine:
    return Engine(models=registry(*replies), trace=False, prices=PriceTable.default())


@pytest.fixture
async def red() -> AsyncIterator[None]:
    """A default engine whose model replies "Red" to two calls."""
    mine = engine(*[Say("Re", "d")] * 2)
    set_default_engine(mine)
    try:
        yield
    finally:
        set_default_engine(None)
        await mine.aclose()


@pytest.mark.anyio
@pytest.mark.usefixtures("red")
@pytest.mark.parametrize(
    ("name", "answer", "shown"),
    [
        ("ask", "Red", "end_turn 15 None\n"),
        ("go_on", "Red", ""),
        ("show", None, "Red\nend_turn, 5 tokens\n"),
        ("watch", None, "text.end Red\nRed 15 None\n"),
        ("give_up", "the turn was aborted: seen enough", ""),
    ],
)
async def test_the_programs_of_the_page_work_as_described(
    name: str, answer: object, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model of each program replies "Red"."""
    found = await defined()[name]("s:m")
    assert found in (answer, "it was quicker") if name == "give_up" else found == answer
    assert capsys.readouterr().out == shown


@pytest.mark.anyio
@pytest.mark.usefixtures("red")
async def test_the_meter_ends_with_the_reported_usage() -> None:
    """The first figures are estimates, and the last one is the reported usage."""
    told = await defined()["meter"]("s:m")
    assert (told[0].estimated, told[-1].estimated, told[-1].usage.output_tokens) == (True, False, 5)


def test_the_plain_program_needs_no_loop(capsys: pytest.CaptureFixture[str]) -> None:
    """The default engine runs on the thread of the sync functions."""
    mine = engine(*[Say("Re", "d")] * 2)
    set_default_engine(mine)
    try:
        assert defined()["plainly"]("s:m") == "Red"
    finally:
        set_default_engine(None)
        run_sync(mine.aclose())
    assert capsys.readouterr().out == "Red"


def test_the_table_of_events_is_complete() -> None:
    page = (ROOT / "docs" / "generate.md").read_text()
    tags = [event.__struct_config__.tag for event in get_args(ViewEvent)]
    assert len(tags) > 15
    assert [tag for tag in tags if f"`{tag}`" not in page] == []


@pytest.mark.deep("the local model")
def test_the_example_talks_to_the_local_model(tmp_path: Path) -> None:
    """The example runs as a separate program."""
    if find_model() is None:
        pytest.skip("the local model's weights are not installed")
    pytest.importorskip("xllamacpp", reason="the local model's server has no wheel for this machine")
    run = subprocess.run(
        [sys.executable, "examples/plain_script.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CALLBOARD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert " tokens\n" in run.stdout
    assert run.stdout.endswith(" $0.000000\n")


# The programs of docs/media.md and examples/video.py run unchanged, against a server on a real socket.


MEDIA_PAGE = Path(__file__).parents[1] / "docs" / "media.md"
SORA, VEO = "openai:sora-2", "gemini:veo-3.1-generate-preview"


@pytest.fixture
def media_provider() -> Iterator[MediaServer]:
    with media_server() as running:
        running.steps = []
        yield running


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", MEDIA_PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def media_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Program]:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec("\n".join(blocks("python")), names)
    return cast("dict[str, Program]", names)


def engine_at(media_provider: MediaServer, tmp_path: Path) -> Engine:
    """An engine with the prices of the page."""
    path = tmp_path / "page-prices.yaml"
    path.write_text(blocks("yaml")[0])
    adapters = {
        name: AdapterEntry(
            name=name,
            type=name,
            config=AdapterConfig(api_key="k", base_url=media_provider.url, retry=RetryPolicy(base_delay=0.01)),
        )
        for name in ("openai", "gemini")
    }
    return Engine(
        models=ModelRegistry(adapters, {}), store=tmp_path / "trace.db", prices=PriceTable.from_yaml(path)
    )


async def test_images_are_made_edited_and_composed(
    media_provider: MediaServer,
    media_programs: dict[str, Program],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with engine_at(media_provider, tmp_path) as engine:
        await media_programs["draw"](engine)
    assert capsys.readouterr().out == "generate image/png None\nedit composite\n"
    assert (tmp_path / "boat.png").read_bytes() == png()


@pytest.mark.deep("a program of the book in processes")
@pytest.mark.parametrize(("model", "usd"), [(SORA, "0.800000000"), (VEO, "3.200000000")])
async def test_a_video_is_filmed_and_taken_up_later(
    media_provider: MediaServer,
    media_programs: dict[str, Program],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    usd: str,
) -> None:
    async with engine_at(media_provider, tmp_path) as engine:
        await media_programs["film"](engine, model)
        assert capsys.readouterr().out == f"completed 1.0\n{usd}\n"
        assert (tmp_path / "boat.mp4").read_bytes() == media_provider.file
        job_id = "video_1" if model == SORA else "models/veo/operations/video_1"
        handle = await media_programs["later"](engine, job_id, model)
        assert getattr(handle, "status", None) == "completed"


@pytest.mark.deep("a program of the book in processes")
async def test_the_example_waits_and_prints_what_a_second_costs(
    media_provider: MediaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a.mp4"
    async with engine_at(media_provider, tmp_path) as engine:
        await wait_for(engine, SORA, "A boat.", target)
    assert capsys.readouterr().out.splitlines()[-1] == f"{target}: 4 seconds, 0.4 USD, 0.1 a second"


async def test_the_example_creates_polls_and_downloads_a_video(
    media_provider: MediaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step runs in a different engine."""
    target = tmp_path / "b.mp4"
    media_provider.steps = [30]
    async with engine_at(media_provider, tmp_path) as engine:
        job_id = await create(engine, SORA, "A boat.")
    for done in (False, True, True):
        async with engine_at(media_provider, tmp_path) as engine:
            assert await fetch(engine, SORA, job_id, target) is done
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "in_progress 0.3"
    assert said[2:] == [f"{target}: 4 seconds, 0.4 USD, 0.1 a second"] * 2
    assert target.read_bytes() == media_provider.file


def test_every_option_and_adapter_is_named() -> None:
    text = MEDIA_PAGE.read_text(encoding="utf-8")
    for name in (*ImageOptions.__annotations__, *VideoOptions.__annotations__):
        assert f"`{name}`" in text, name
    for names in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]*\|$", text, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            assert name in adapter_types() or name in ImageOptions.__annotations__, name


# The programs of docs/objects.md, and the example, run unchanged.


@pytest.fixture
async def object_programs() -> AsyncIterator[dict[str, Any]]:
    """The names that the page's blocks define. The default engine has the replies for its programs."""
    names = definitions(DOCS / "objects.md")
    replies = [
        Say('{"name": "Ada", "age": 36}'),
        Say('{"value": [{"name": "Ada", "age": 36}]}'),
        Say('{"name": "Ada", "age": 36,}'),
        Say("No."),
    ]
    engine = Engine(models=registry(*replies), trace=False, prices=PriceTable.default())
    set_default_engine(engine)
    try:
        yield names
    finally:
        set_default_engine(None)
        await engine.aclose()


async def test_the_programs_of_the_objects_page_do_what_they_say(
    object_programs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ada = object_programs["Person"]("Ada", 36)
    assert await object_programs["read"]("s:m", "…") == ada
    assert await object_programs["follow"]("s:m", "…") == [ada]
    assert await object_programs["or_none"]("s:m", "…") == ada
    assert await object_programs["or_none"]("s:m", "…") is None
    assert capsys.readouterr().out.splitlines() == [
        "1 so far",
        "not_json the text has no JSON, at character 3 No. 15 None",
    ]


@pytest.mark.deep("the local model")
async def test_the_example_reads_people_with_the_local_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_model() is None:
        pytest.skip("the local model's weights are not installed")
    pytest.importorskip("xllamacpp", reason="the local model's server has no wheel for this machine")
    from examples import objects

    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    await objects.main()
    shown = capsys.readouterr().out
    assert shown.startswith("Person(name='Ada', age=36, city='London')\n")
    assert "\nso far: ['red'" in shown


# The programs of docs/tools.md and examples/tools.py run unchanged.


SERVER = Path(__file__).parent / "engine" / "mcp" / "mcp_server.py"


@pytest.fixture
def tool_programs() -> dict[str, Any]:
    """The names that the page's blocks define."""
    return definitions(DOCS / "tools.md")


def results(events: list[Any]) -> list[str]:
    """The results of tools in the published events."""
    messages = [e.data.message for e in events if isinstance(e.data, SessionMessageAppended)]
    return [block.text for message in messages for block in message.content if isinstance(block, ToolResultBlock)]


async def test_the_first_program_calls_its_tool(tool_programs: dict[str, Any]) -> None:
    async with running(Say(calls=[("get_weather", {"city": "Rome"})]), Say("Yes.")) as (engine, events):
        assert await tool_programs["ask"](engine, "s:m") == "Yes."
        assert results(events.take()) == ['{"city":"Rome","degrees":21,"unit":"celsius"}']


async def test_the_tool_with_a_context_can_be_called_directly(tool_programs: dict[str, Any]) -> None:
    copy = cast("Callable[..., str]", tool_programs["copy_files"])
    assert copy(["a", "b"], ToolContext(tool_call_id="tu_1", tool_name="copy_files")) == "2 copied"


async def test_the_approving_program_denies_one_and_approves_the_other(tool_programs: dict[str, Any]) -> None:
    """The hook decides about one call, and the program about the other."""
    calls = [("delete_file", {"path": "notes.txt"}), ("delete_file", {"path": "/etc/passwd"})]
    async with running(Say(calls=calls), Say("Done.")) as (engine, events):
        assert await tool_programs["clean_up"](engine, "s:m") == "Done."
        assert results(events.take()) == ["The call was not approved: not there", "notes.txt is deleted"]


async def test_the_refund_is_made_once_if_the_call_runs_twice(
    tool_programs: dict[str, Any], tmp_path: Path
) -> None:
    """The first process dies after the refund."""
    refunds: dict[str, str] = {}
    asked: list[str] = []

    def pay_back(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["idempotency-key"])
        return httpx.Response(200, json={"id": refunds.setdefault(asked[-1], f"re_{len(refunds) + 1}")})

    tool_programs["payments"]._transport = httpx.MockTransport(pay_back)
    refund = tool_programs["refund"]
    models = registry(Say(calls=[("refund", {"charge": "ch_1", "cents": 500})]), Say("Done."))
    async with keeping(tmp_path / "trace.db", models=models) as engine:
        session = engine.session("s:m", tools=[refund])
        await session.send("Refund ch_1.")
        (call,) = session.pending_calls
        lost = ToolContext(
            tool_call_id=call.id, tool_name="refund", session_id=session.id, messages=session.messages
        )
        await refund("ch_1", 500, lost)
    async with keeping(tmp_path / "trace.db", models=models) as engine:
        session = await engine.resume(session.id, tools=[refund])
        await session.submit({call.id: Approved()})
        assert session.messages[2].content == (ToolResultBlock(call.id, "re_1"),)
    assert len(asked) == 2
    assert list(refunds.values()) == ["re_1"]


async def test_the_program_with_a_server_calls_it(tool_programs: dict[str, Any]) -> None:
    pytest.importorskip("mcp", reason="needs callboard[mcp]")
    program = cast("Callable[..., Awaitable[str]]", tool_programs["with_server"])
    async with running(Say(calls=[("lib_find", {"title": "Emma"})]), Say("Found.")) as (engine, events):
        assert await program(engine, "s:m", [sys.executable, str(SERVER)]) == "Found."
        assert results(events.take()) == ["Emma x1"]


@pytest.mark.parametrize("may_write", [True, False])
async def test_the_example_writes_only_with_an_approval(
    may_write: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tools only use their folder, a path outside is an error, and writing needs an approval."""
    (tmp_path / "a.txt").write_text("alpha")
    script = [
        Say(calls=[("list_files", {}), ("read_file", {"path": "a.txt"}), ("read_file", {"path": "../x"})]),
        Say(calls=[("write_file", {"path": "b.txt", "text": "beta"})]),
        Say("That ", "was all."),
    ]
    async with running(*script) as (engine, events):
        await assist(engine, "s:m", Folder(tmp_path), "Copy a to b.", may_write=may_write)
        told = results(events.take())
    assert told[:3] == ['["a.txt"]', "alpha", "That path is outside the folder."]
    assert told[3] == ("written" if may_write else "The call was not approved: the user said no")
    assert (tmp_path / "b.txt").exists() is may_write
    printed = capsys.readouterr().out
    assert "[reading a.txt]" in printed
    assert printed.endswith("That was all.\n")
