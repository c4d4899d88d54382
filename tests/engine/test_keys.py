"""Named keys through the engine, for sessions, turns and all other calls, and in the trace."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from callboard.adapters import AdapterConfig, AuthError, OpenAIAdapter, OpenAICompatibleAdapter
from callboard.adapters.conformance.http_kit import FakeReply
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus import ConfigurationError, LlmCallFailed, LlmCallStarted, Lossless
from callboard.bus.values.base import Json
from callboard.engine import AdapterEntry, Engine, ModelRegistry
from callboard.tracestore import CallFilter

from ..support.engines import model

OWN, ACME, BETA = "sk-own-0123456789", "sk-of-acme-0123456789", "sk-of-beta-0123456789"
TENANTS = {"acme": ACME, "beta": BETA}

CHAT: Json = {
    "id": "1",
    "model": "m",
    "choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}
VECTORS: Json = {"model": "m", "data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 1}}
IMAGE: Json = {"data": [{"b64_json": "iVBORw0KGgo="}]}
JOB: Json = {"id": "video_1", "status": "in_progress", "model": "sora-2", "seconds": "4", "size": "720x1280"}


class Provider:
    """A provider that replies to each key with its configured status, by default 200."""

    def __init__(self, **statuses: int) -> None:
        self.statuses = {TENANTS.get(name, OWN): status for name, status in statuses.items()}
        self.sent: list[str] = []
        self.job = JOB

    async def send(self, request: HttpRequest) -> HttpReply:
        await anyio.lowlevel.checkpoint()
        key = request.headers["authorization"].removeprefix("Bearer ")
        self.sent.append(key)
        status = self.statuses.get(key, 200)
        answer = next(reply for path, reply in _ANSWERS.items() if path in request.url)
        answer = self.job if answer is JOB else answer
        body: Json = answer if status == 200 else {"error": {"message": f"not with {key}"}}
        return FakeReply(msgspec.json.encode(body), status=status, headers={"content-type": "application/json"})

    async def aclose(self) -> None:
        """Do nothing."""


_ANSWERS = {"chat/completions": CHAT, "/embeddings": VECTORS, "/images": IMAGE, "/videos": JOB}


def serving(
    provider: Provider, name: str = "p", kind: type[HttpAdapter] = OpenAICompatibleAdapter, **config: object
) -> AdapterEntry:
    """An adapter with that provider as its network."""
    fields = {"api_key": OWN, "base_url": "https://x.test", "keys": TENANTS, "max_retries": 0, **config}
    settings = AdapterConfig(**fields)  # type: ignore[arg-type]
    return AdapterEntry(
        name=name, type="x:y", config=settings, make=lambda: kind(settings, name=name, transport=provider)
    )


def engine_on(*entries: AdapterEntry, store: Path | None = None) -> Engine:
    models = {f"{entry.name}:m": model(f"{entry.name}:m") for entry in entries}
    registry = ModelRegistry({entry.name: entry for entry in entries}, models)
    return Engine(models=registry, store=store, trace=store is not None, capture_content=store is not None)


async def test_a_session_and_a_turn_can_name_a_key() -> None:
    """The turn's key takes precedence. Without a name, the adapter's own key is sent."""
    provider = Provider()
    async with engine_on(serving(provider)) as engine:
        session = engine.session("p:m", key="acme")
        await session.send("Hi")
        await session.send("Hi", key="beta")
        await session.send("Hi")
        await engine.session("p:m").send("Hi")
        await engine.generate("p:m", "Hi", key="beta")
        await engine.session("p:m", key="acme").stream("Hi").result()
    assert provider.sent == [ACME, BETA, ACME, OWN, BETA, ACME]


async def test_vectors_images_and_jobs_can_name_a_key(tmp_path: Path) -> None:
    """Each request for a job uses the key that created the job, in another process too."""
    provider, path = Provider(), tmp_path / "trace.db"
    entries = serving(provider), serving(provider, "o", OpenAIAdapter)
    async with engine_on(*entries, store=path) as engine:
        await engine.embed(["text"], model="p:m", key="acme")
        await engine.generate_image("A boat.", model="o:gpt-image-1", key="beta")
        await (await engine.create_video("A boat.", model="o:sora-2", key="acme")).refresh()
        again = await engine.resume_video("video_2", "o:sora-2", key="beta")
        await again.refresh()
    async with engine_on(*entries, store=path) as engine:
        handle = await engine.resume_video("video_1", "o:sora-2")
        provider.job = {**JOB, "status": "completed"}
        await handle.refresh()
        await engine.flush()
        rows = await engine.store.calls()
    assert provider.sent == [ACME, BETA, ACME, ACME, BETA, BETA, ACME, ACME]
    assert [(row.operation, row.key) for row in rows][:2] == [("video", "acme"), ("video_create", "acme")]


@pytest.mark.parametrize("what", ["session", "generate", "embed", "image", "video"])
async def test_an_unknown_name_is_an_error_that_lists_the_known_ones(what: str) -> None:
    """Every kind of call raises the error. Nothing is sent."""
    provider = Provider()
    async with engine_on(serving(provider, "o", OpenAIAdapter)) as engine:
        calls = {
            "session": lambda: engine.session("o:m", key="gamma").send("Hi"),
            "generate": lambda: engine.generate("o:m", "Hi", key="gamma"),
            "embed": lambda: engine.embed(["x"], model="o:text-embedding-3-small", key="gamma"),
            "image": lambda: engine.generate_image("x", model="o:gpt-image-1", key="gamma"),
            "video": lambda: engine.create_video("x", model="o:sora-2", key="gamma"),
        }
        with pytest.raises(ConfigurationError, match="o has no key 'gamma': its keys are acme, beta"):
            await calls[what]()
    assert provider.sent == []


async def test_a_fallback_without_the_key_is_skipped() -> None:
    """A call for one tenant never uses the key of another tenant."""
    first, second, third = Provider(acme=500), Provider(), Provider()
    async with engine_on(serving(first, "a"), serving(second, "b", keys={}), serving(third, "c")) as engine:
        result = await engine.session(["a:m", "b:m", "c:m"], key="acme").send("Hi")
    assert result.routing.model == "c:m"
    assert "has no key 'acme'" in str(result.routing.candidates[1].rejected)
    assert (first.sent, second.sent, third.sent) == ([ACME], [], [ACME])


async def test_a_refused_key_closes_the_provider_only_for_its_tenant() -> None:
    """The key rests, so only the tenant's calls use the fallback."""
    provider, other = Provider(acme=401), Provider()
    async with engine_on(serving(provider, "a"), serving(other, "b")) as engine:
        with pytest.raises(AuthError):
            await engine.session("a:m", key="acme").send("Hi")
        await anyio.wait_all_tasks_blocked()
        assert not engine.statistics().availability
        result = await engine.session(["a:m", "b:m"], key="acme").send("Hi")
        assert "its key 'acme' was refused (AuthError)" in str(result.routing.candidates[0].rejected)
        result = await engine.session(["a:m", "b:m"], key="beta").send("Hi")
        assert result.routing.model == "a:m"
    assert other.sent == [ACME]


async def test_a_pool_without_a_ready_key_is_skipped() -> None:
    provider, other = Provider(acme=401), Provider()
    async with engine_on(serving(provider, "a", key_pool=("acme", "beta")), serving(other, "b")) as engine:
        for _ in range(2):
            assert (await engine.session(["a:m", "b:m"]).send("Hi")).routing.model == "a:m"
        provider.statuses[BETA] = 403
        for _ in range(2):
            assert (await engine.session(["a:m", "b:m"]).send("Hi")).routing.model == "b:m"
    assert provider.sent == [ACME, BETA, BETA, BETA]


async def test_the_trace_has_the_name_of_the_key(tmp_path: Path) -> None:
    """The events and the calls have the key's name for each attempt, and sums can be grouped by that name."""
    provider = Provider(acme=401)
    async with engine_on(serving(provider, key_pool=("acme", "beta")), store=tmp_path / "trace.db") as engine:
        events = engine.bus.subscribe("llm.*", policy=Lossless(), name="test")
        await engine.session("p:m").send("Hi")
        with pytest.raises(AuthError):
            await engine.session("p:m", key="acme").send("Hi")
        await engine.flush()
        rows = await engine.store.calls()
        tried = [(1, "acme", "first"), (2, "beta", "key"), (1, "acme", "first")]
        assert [(row.attempt, row.key, row.reason) for row in reversed(rows)] == tried
        assert [row.key for row in await engine.store.calls(CallFilter(key="beta"))] == ["beta"]
        sums = await engine.store.costs(by=("key",))
        assert {row.key: row.calls for row in sums} == {("acme",): 2, ("beta",): 1}
        published = [each.data for each in events.take() if isinstance(each.data, LlmCallStarted | LlmCallFailed)]
        assert [event.key for event in published] == ["acme", "acme", "beta", "acme", "acme"]
    files = [await path.read_bytes() async for path in anyio.Path(tmp_path).iterdir()]
    assert not [data for data in files for key in (OWN, ACME, BETA) if key.encode() in data]


async def test_a_session_stays_with_its_first_key() -> None:
    """The session's prompt is cached for that key. Sessions are spread over the pool."""
    provider = Provider()
    async with engine_on(serving(provider, key_pool=("acme", "beta"))) as engine:
        one, two = engine.session("p:m"), engine.session("p:m")
        for session in (one, two, one, one, two):
            await session.send("Hi")
        provider.statuses[ACME] = 429
        for session in (one, two, one):
            await session.send("Hi")
    assert provider.sent == [ACME, BETA, ACME, ACME, BETA, ACME, BETA, BETA, BETA]


async def test_a_resumed_session_needs_its_key_and_a_fork_keeps_it(tmp_path: Path) -> None:
    """Exported documents and stored sessions do not contain the key's name."""
    provider = Provider()
    async with engine_on(serving(provider), store=tmp_path / "trace.db") as engine:
        session = engine.session("p:m", key="acme")
        await session.send("Hi")
        await session.fork().send("Hi")
        document = session.export()
        assert b"acme" not in (document if isinstance(document, bytes) else document.encode())
        imported = await engine.import_session(document, session_id="ses_imported", key="beta")
        await imported.send("Hi")
    async with engine_on(serving(provider), store=tmp_path / "trace.db") as engine:
        await (await engine.resume(session.id, key="acme")).send("Hi")
    assert provider.sent == [ACME, ACME, BETA, ACME]


async def test_a_session_stays_with_its_last_deployment() -> None:
    """Two providers have one model, and one of them has the prompt in its cache."""
    first, second = Provider(own=503), Provider()
    async with engine_on(serving(first, "a"), serving(second, "b")) as engine:
        session = engine.session(["a:m", "b:m"])
        assert (await session.send("Hi")).routing.model == "b:m"
        first.statuses.clear()
        reply = await session.send("Hi")
        assert reply.routing.model == "b:m"
        assert reply.routing.candidates[0].rejected == "not needed: b:m has the prompt in its cache"
        assert (await engine.session(["a:m", "b:m"]).send("Hi")).routing.model == "a:m"
        second.statuses[OWN] = 503
        assert (await session.send("Hi")).routing.model == "a:m"
        second.statuses.clear()
        assert (await session.send("Hi")).routing.model == "a:m"


async def test_a_session_leaves_another_model_when_its_own_is_back() -> None:
    """The fallback is not a deployment of the requested model."""
    first, second = Provider(own=500), Provider()
    entries = {name: serving(provider, name) for name, provider in (("a", first), ("b", second))}
    models = {"a:m": model("a:m"), "b:other": model("b:other")}
    async with Engine(models=ModelRegistry(entries, models), trace=False) as engine:
        session = engine.session(["a:m", "b:other"])
        assert (await session.send("Hi")).routing.model == "b:other"
        first.statuses.clear()
        assert (await session.send("Hi")).routing.model == "a:m"
