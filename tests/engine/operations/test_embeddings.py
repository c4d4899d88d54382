"""`Engine.embed` uses the same registry, availability, slots, prices and trace as conversations."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from callboard.adapters import (
    AdapterConfig,
    AdapterError,
    AttemptFailed,
    AttemptFirstEvent,
    AttemptObserver,
    AttemptStarted,
    CapabilityError,
    ContextOverflowError,
    InvalidRequestError,
    ServerError,
    TokenUsage,
)
from callboard.adapters.embeddings import (
    EmbeddingCapabilities,
    EmbeddingRequest,
    EmbeddingResponse,
    PartialEmbeddingError,
)
from callboard.bus import (
    SYSTEM_CLOCK,
    AuthError,
    Clock,
    ConfigurationError,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    Lossless,
    Subscription,
)
from callboard.engine import (
    Budget,
    BudgetExceededError,
    Engine,
    ModelChoice,
    ModelEntry,
    ModelRegistry,
    embed,
    embed_sync,
)
from callboard.engine.models.configured import read_models_yaml
from callboard.engine.routing.candidates import expand
from callboard.tracestore import CallFilter, PriceTable
from tests.support.engines import entry, model, serving
from tests.support.scripted import Say, ScriptedAdapter, scripted_type

from ...support.virtual_time import Backend, backend

PRICES = """
label: test
prices:
  - {model: "a:small", input: 1.00, output: 0}
"""


class Embedder(ScriptedAdapter):
    """Embeds a text as its length. A call accepts up to three texts."""

    faults: ClassVar[list[AdapterError | None]] = []
    """The errors of the next calls, one for each call, also after restarts."""
    pause: Callable[[], Awaitable[object]] | None = None
    """The function that is called before each reply."""
    dimensions = 1
    at_once = 0
    most_at_once = 0

    def __init__(self, config: AdapterConfig, *, name: str = "e", clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config, name=name, clock=clock)

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        kind = type(self)
        on_attempt(AttemptStarted(1))
        kind.at_once += 1
        kind.most_at_once = max(kind.most_at_once, kind.at_once)
        try:
            if kind.pause is not None:
                await kind.pause()
        finally:
            kind.at_once -= 1
        error = kind.faults.pop(0) if kind.faults else None
        if error is not None and error.retryable and (request.max_retries or 0) > 0:
            on_attempt(AttemptFailed(1, error, 0.0))
            on_attempt(AttemptStarted(2, "retry"))
        elif error is not None:
            raise error
        on_attempt(AttemptFirstEvent(1))
        size = request.dimensions or kind.dimensions
        return EmbeddingResponse(
            request_id=request.request_id,
            model=request.model,
            provider=self.name,
            vectors=tuple(array("f", [len(text)] * size) for text in request.inputs),
            usage=TokenUsage(1000 * len(request.inputs)),
        )

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(max_inputs=3, dimensions=type(self).dimensions, dimension_choices=(1, 2))


class TokenEmbedder(Embedder):
    """Accepts tokens."""

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(supports_tokens=True)


def embedder_type(name: str, **fields: object) -> str:
    """An adapter type for models.yaml: a new class with these attributes."""
    kind = type(name, (Embedder,), {"script": [], "faults": [], "at_once": 0, "most_at_once": 0, **fields})
    globals()[name] = kind
    return f"{__name__}:{name}"


@asynccontextmanager
async def engine_of(
    models: ModelRegistry, *, store: Path | None = None, prices: PriceTable | None = None
) -> AsyncIterator[tuple[Engine, Subscription]]:
    engine = Engine(models=models, store=store, trace=store is not None, prices=prices or PriceTable.default())
    events = engine.bus.subscribe("llm.*", policy=Lossless(), name="test")
    async with engine:
        yield engine, events


async def seen(events: Subscription, engine: Engine) -> list[object]:
    """The events that have been published so far."""
    await engine.aclose()
    return [envelope.data async for envelope in events]


def small(adapter: str, **fields: object) -> ModelEntry:
    return model(f"{adapter}:small", **fields)


async def test_texts_become_vectors_in_order_with_one_call_for_each_batch() -> None:
    texts = ["x" * n for n in range(1, 9)]
    async with engine_of(serving(small("a"), a=embedder_type("Plain"))) as (engine, events):
        result = await engine.embed(texts, model="a:small")
        assert [vector[0] for vector in result.vectors] == [float(n) for n in range(1, 9)]
        assert (result.usage.input_tokens, result.model, result.dimensions) == (8000, "a:small", 1)
        assert result.matrix() == array("f", range(1, 9))
        assert len(result.calls) == len(set(result.calls)) == 3
        published = await seen(events, engine)
    started = [event for event in published if isinstance(event, LlmCallStarted)]
    assert [event.operation for event in started] == ["embeddings"] * 3
    assert [event.streamed for event in started] == [False] * 3
    assert len([event for event in published if isinstance(event, LlmCallCompleted)]) == 3


async def test_a_single_text_needs_no_list_and_no_text_costs_nothing() -> None:
    async with engine_of(serving(small("a"), a=embedder_type("Alone"))) as (engine, events):
        assert [vector[0] for vector in (await engine.embed("four", model="a:small")).vectors] == [4.0]
        nothing = await engine.embed([], model="a:small")
        assert (nothing.vectors, nothing.cost.nano_usd, nothing.calls) == ((), 0, ())
        assert (await engine.embed(["x"], model="a:small", dimensions=2)).dimensions == 2
        assert len(await seen(events, engine)) == 4


LARGE = small("c", id="c:large", wire_name="large")


@pytest.mark.parametrize(("model", "inputs", "options", "error", "why"), [
    ("t:small", ["x"], {}, CapabilityError, "t:small can't embed: its adapter supports only conversations"),
    ("b:small", ["x"], {}, ConfigurationError, "A_KEY"),
    ("a:small", [(5, 6)], {}, CapabilityError, "a:small embeds only texts, not tokens"),
    ("a:small", ["x"], {"dimensions": 3}, CapabilityError, "does not support 3 dimensions: it offers 1, 2"),
    ("a:small", ["x"], {"fallback": ["c:large"]}, ConfigurationError, "c:large can't replace a:small"),
    ("d:small", ["x"], {}, ConfigurationError, "c:large can't replace d:small"),
])  # fmt: skip
async def test_a_call_that_its_model_cannot_make_is_refused_before_it_is_sent(
    model: str, inputs: Any, options: dict[str, Any], error: type[Exception], why: str
) -> None:
    kind = embedder_type("Refusing")
    adapters = dict.fromkeys("acd", kind) | {"t": f"{__name__}:Talker"}
    models = serving(
        *(small(name) for name in "abt"),
        LARGE,
        small("d", fallback=("c:large",)),
        b=entry("b", kind, missing_key="A_KEY"),
        **adapters,
    )
    async with engine_of(models) as (engine, events):
        with pytest.raises(error, match=why):
            await engine.embed(inputs, model=model, **options)
        assert await seen(events, engine) == []


@pytest.mark.parametrize(("tokens", "refused"), [([[5, 6], [7]], False), ([[5, 6], [7, 8]], True)])
async def test_a_budget_counts_token_inputs_exactly(tokens: list[list[int]], refused: bool) -> None:
    """The tokens of a text are estimated, and a budget reserves the upper end."""
    models = serving(small("a"), a=f"{__name__}:TokenEmbedder")
    async with Engine(models=models, trace=False, budgets=[Budget(max_tokens=3)]) as engine:
        if refused:
            with pytest.raises(BudgetExceededError):
                await engine.embed(tokens, model="a:small")
        else:
            result = await engine.embed(tokens, model="a:small")
            assert [vector[0] for vector in result.vectors] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("inputs", "error"), [([5, 6], TypeError), ([[]], ValueError), ([[True]], ValueError), ([[-1]], ValueError)]
)
async def test_an_input_that_is_neither_a_text_nor_tokens_is_refused(inputs: Any, error: type[Exception]) -> None:
    async with engine_of(serving(small("a"), a=f"{__name__}:TokenEmbedder")) as (engine, _):
        with pytest.raises(error, match="token"):
            await engine.embed(inputs, model="a:small")


# -- Failures.


async def test_a_batch_that_fails_is_one_failed_call_and_the_others_are_kept() -> None:
    faults = [None, ServerError("broken"), None]
    async with engine_of(serving(small("a"), a=embedder_type("Partly", faults=faults))) as (engine, events):
        with pytest.raises(PartialEmbeddingError) as caught:
            await engine.embed(["x"] * 9, model="a:small", at_once=1)
        assert sorted(caught.value.failures) == [3, 4, 5]
        assert [vector is None for vector in caught.value.vectors] == [n in (3, 4, 5) for n in range(9)]
        published = await seen(events, engine)
    ends = [type(event) for event in published if not isinstance(event, LlmCallStarted)]
    assert ends == [LlmCallCompleted, LlmCallFailed, LlmCallCompleted]


async def test_cancelling_embed_ends_every_call_in_progress() -> None:
    kind = embedder_type("Slow", pause=staticmethod(anyio.sleep_forever))
    async with engine_of(serving(small("a"), a=kind)) as (engine, events):
        with anyio.move_on_after(1.0):
            await engine.embed(["x"] * 9, model="a:small")
        published = await seen(events, engine)
    ends = [event for event in published if isinstance(event, LlmCallFailed)]
    assert [event.error_class for event in ends] == ["cancelled"] * 3
    assert len(published) == 6


async def test_batches_respect_the_providers_slots() -> None:
    kind = embedder_type("Bounded", pause=staticmethod(lambda: anyio.sleep(1)))
    async with engine_of(serving(small("a"), a=entry("a", kind, max_concurrency=2))) as (engine, _):
        await engine.embed(["x"] * 30, model="a:small", at_once=8)
    assert globals()["Bounded"].most_at_once == 2


# -- Fallbacks.


async def test_a_fallback_is_another_provider_of_the_same_model() -> None:
    """The failed call and its fallback are two calls. No vector is missing."""
    models = serving(
        small("a", fallback=("b:small",)),
        small("b"),
        a=embedder_type("Down", faults=[ServerError("down")] * 2),
        b=embedder_type("Up"),
    )
    async with engine_of(models) as (engine, events):
        envelopes = engine.bus.subscribe("llm.call_started", policy=Lossless(), name="causes")
        result = await engine.embed(["x"] * 6, model="a:small", at_once=1)
        assert [vector[0] for vector in result.vectors] == [1.0] * 6
        published = await seen(events, engine)
        causes = [(envelope.data.model, envelope.caused_by) async for envelope in envelopes]  # type: ignore[attr-defined]
    assert [model for model, _ in causes] == ["a:small", "b:small"] * 2
    assert [caused_by is None for _, caused_by in causes] == [True, False] * 2
    assert len([event for event in published if isinstance(event, LlmCallFailed)]) == 2


async def test_a_batch_that_is_too_large_is_halved_and_not_sent_elsewhere() -> None:
    """A model has the same context window at every provider."""
    models = serving(
        small("a", fallback=("b:small",)),
        small("b"),
        a=embedder_type("Narrow", faults=[ContextOverflowError("too long")]),
        b=embedder_type("Spare"),
    )
    async with engine_of(models) as (engine, events):
        result = await engine.embed(["x"] * 3, model="a:small", at_once=1)
        assert len(result.vectors) == 3
        published = await seen(events, engine)
    assert [event.model for event in published if isinstance(event, LlmCallStarted)] == ["a:small"] * 3


async def test_models_yaml_sets_the_embedding_space_of_a_name(tmp_path: Path) -> None:
    """A deployment may have a name without the name of its model."""
    down = embedder_type("Broken", faults=[ServerError("down")])
    (tmp_path / "models.yaml").write_text(
        f"""
        adapters:
          a: {{type: "{down}"}}
          b: {{type: "{embedder_type("Deployed")}"}}
        models:
          "a:small": {{adapter: a, kind: embedding, embedding_space: s1, fallback: ["b:mine"]}}
          "b:mine": {{adapter: b, kind: embedding, embedding_space: s1}}
        """,
        encoding="utf-8",
    )
    async with engine_of(read_models_yaml(tmp_path / "models.yaml", {})) as (engine, _):
        assert (await engine.embed(["x"], model="a:small")).model == "b:mine"


async def test_an_organisation_before_a_models_name_does_not_change_the_space() -> None:
    """Gateways use such names."""
    models = serving(
        small("a", fallback=("b:org/small",)),
        small("b", id="b:org/small", wire_name="org/Small:latest"),
        a=embedder_type("Gone", faults=[ServerError("down")]),
        b=embedder_type("Gateway"),
    )
    async with engine_of(models) as (engine, _):
        assert (await engine.embed(["x"], model="a:small")).model == "b:org/Small:latest"


async def test_a_model_that_embeds_is_not_chosen_for_a_conversation() -> None:
    kinds = {"a": embedder_type("Never"), "b": scripted_type(Say("hello"))}
    models = serving(small("a", kind="embedding"), small("b"), **kinds)
    assert [named.model for named in expand(models, ModelChoice()).named] == ["b:small"]


async def test_a_refused_key_makes_the_provider_unavailable() -> None:
    models = serving(small("a"), a=embedder_type("Refused", faults=[AuthError("bad key")]))
    async with engine_of(models) as (engine, _):
        with pytest.raises(AuthError):
            await engine.embed(["x"], model="a:small")
        await anyio.wait_all_tasks_blocked()
        (record,) = [each for each in engine.statistics().availability if each.model is None]
        assert record.state == "unavailable"


class TestOnDisk:
    """These tests use a store, so they run on a real loop."""

    @pytest.fixture
    def anyio_backend(self) -> Backend:
        return backend("asyncio")

    async def test_every_batch_is_a_row_with_its_price(self, tmp_path: Path) -> None:
        prices = tmp_path / "prices.yaml"
        prices.write_text(PRICES)
        models = serving(small("a"), a=embedder_type("Stored"), t=scripted_type(Say("hi")))
        table = PriceTable.from_yaml(prices)
        async with engine_of(models, store=tmp_path / "trace.db", prices=table) as (engine, _):
            result = await engine.embed(["x"] * 5, model="a:small", tags={"job": "index"})
            await engine.session("t:m").send("Hello")
            await engine.flush()
            rows = await engine.store.calls(CallFilter(operation="embeddings"))
            assert sorted(row.request_id for row in rows) == sorted(result.calls)
            assert {row.tags["job"] for row in rows} == {"index"}
            assert sorted(row.cost.nano_usd for row in rows if row.cost is not None) == [2_000_000, 3_000_000]
            assert result.cost.nano_usd == 5_000_000
            (chat,) = await engine.store.calls(CallFilter(operation="chat"))
            assert (chat.operation, chat.model) == ("chat", "t:m")
            (line,) = await engine.store.costs(by=("operation",), where=CallFilter(model="a:small"))
            assert line.key == ("embeddings",)


class Talker(ScriptedAdapter):
    """An adapter for conversations without embeddings."""

    script: ClassVar[list[Say]] = []
    embed = None  # type: ignore[assignment]


async def test_progress_is_reported_after_each_batch_and_ends_with_all_texts() -> None:
    """The number never falls. Texts of a halved or failed batch count once. An error of the function is raised."""
    reported: list[tuple[int, int]] = []
    kind = embedder_type("Telling", faults=[ContextOverflowError("too large"), ServerError("no")])
    options: dict[str, Any] = {"model": "a:small", "at_once": 1, "max_retries": 0}

    def tell(done: int, total: int) -> None:
        reported.append((done, total))

    def stop(done: int, total: int) -> None:
        raise ZeroDivisionError(done)

    async with engine_of(serving(small("a"), a=kind)) as (engine, _):
        with pytest.raises(PartialEmbeddingError) as raised:
            await engine.embed(["x"] * 10, on_progress=tell, **options)
        assert reported == [(1, 10), (3, 10), (6, 10), (9, 10), (10, 10)]
        assert raised.value.cost is not None
        reported.clear()
        await engine.embed([], on_progress=tell, **options)
        assert reported == []
        with pytest.raises(ZeroDivisionError, match="3"):
            await engine.embed(["x"] * 10, on_progress=stop, **options)


async def test_batch_size_can_be_below_the_providers_limit_and_not_above() -> None:
    """Smaller batches report progress more often."""
    async with engine_of(serving(small("a"), a=embedder_type("Sized"))) as (engine, _):
        assert len((await engine.embed(["x"] * 6, model="a:small", batch_size=2)).calls) == 3
        assert len((await engine.embed(["x"] * 6, model="a:small", batch_size=100)).calls) == 2
        with pytest.raises(ValueError, match="batch_size=0"):
            await engine.embed(["x"], model="a:small", batch_size=0)


async def test_the_function_is_the_engine_s_method() -> None:
    async with engine_of(serving(small("a"), a=embedder_type("Function"))) as (engine, _):
        result = await embed(["four"], model="a:small", engine=engine, dimensions=2)
        assert [list(vector) for vector in result.vectors] == [[4.0, 4.0]]


def test_the_sync_function_reports_progress() -> None:
    reported: list[tuple[int, int]] = []

    def report(done: int, total: int) -> None:
        reported.append((done, total))

    with Engine(models=serving(small("a"), a=embedder_type("Sync")), trace=False) as engine:
        result = embed_sync(["x"] * 7, model="a:small", engine=engine, at_once=1, on_progress=report)
    assert (len(result.vectors), reported) == (7, [(3, 7), (6, 7), (7, 7)])


async def test_the_published_error_of_an_embedding_quotes_no_text() -> None:
    text = "my number is 4711 0815, and Ada is my name"
    fault = InvalidRequestError(f"input 0 is refused: {text}.")
    async with engine_of(serving(small("a"), a=embedder_type("Quoting", faults=[fault]))) as (engine, events):
        with pytest.raises(InvalidRequestError, match="4711"):
            await engine.embed([text], model="a:small")
        (failed,) = (event for event in await seen(events, engine) if isinstance(event, LlmCallFailed))
        assert failed.message == "input 0 is refused: …."
