"""Measures the installed SDKs and frameworks, each in a process of its own, with the same server.

    python -m benchmarks.peers CLIENT URL MODE COUNT        MODE: call or stream

Each client reads the same replies with its default settings. The figure is the CPU time of the process for each
call, or for each event that the client returns, without the import. Callboard has two rows: an adapter alone, and
the whole engine with its store. The clients of others are the extra ``bench`` of pyproject.toml.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from tests.support.reply_server import ROOT, Chat, Messages, reply_server

from .floors import Clients, HandClients, RawClients
from .hosts import engine_on
from .table import Row, against

Work: TypeAlias = Callable[[], Awaitable[int]]
Client: TypeAlias = tuple[Work, Work]
"""A function for one call and one for one stream. Each returns its number of events."""

QUESTION = "Go on."
TURNS: list[Any] = [{"role": "user", "content": QUESTION}]
LIMIT = 1000
DELTAS = 500


async def _counted(events: Any) -> int:
    count = 0
    async for _ in events:
        count += 1
    return count


async def alone(clients: Clients, path: str, body: dict[str, Any]) -> Client:
    """A floor: a client without Callboard."""

    async def call() -> int:
        await clients.post(path, body)
        return 1

    async def stream() -> int:
        before = clients.events
        await clients.stream(path, {**body, "stream": True})
        return clients.events - before

    return call, stream


CHAT: dict[str, Any] = {"model": "bench", "messages": TURNS}
MESSAGES: dict[str, Any] = {**CHAT, "max_tokens": LIMIT}


async def by_hand(url: str, stack: AsyncExitStack) -> Client:
    return await alone(await stack.enter_async_context(HandClients(url)), Chat.path, CHAT)


async def raw_chat(url: str, stack: AsyncExitStack) -> Client:
    return await alone(await stack.enter_async_context(RawClients(url)), Chat.path, CHAT)


async def raw_messages(url: str, stack: AsyncExitStack) -> Client:
    return await alone(await stack.enter_async_context(RawClients(url)), Messages.path, MESSAGES)


async def adapter(url: str, stack: AsyncExitStack, kind: str) -> Client:
    from callboard.adapters import AdapterConfig, CanonicalRequest, Message, create_adapter

    made = create_adapter(kind, AdapterConfig(api_key="x", base_url=url), name="bench")
    stack.push_async_callback(made.close)
    number = 0

    def request() -> CanonicalRequest:
        nonlocal number
        number += 1
        return CanonicalRequest(
            request_id=f"req_{number}", model="bench", messages=(Message.user(QUESTION),), max_output_tokens=LIMIT
        )

    async def call() -> int:
        await made.complete(request())
        return 1

    return call, lambda: _counted(made.stream(request()))


async def adapter_chat(url: str, stack: AsyncExitStack) -> Client:
    return await adapter(url, stack, "openai_compatible")


async def adapter_messages(url: str, stack: AsyncExitStack) -> Client:
    return await adapter(url, stack, "anthropic")


async def engine(url: str, stack: AsyncExitStack, model: str, *, trace: bool = True) -> Client:
    made = await stack.enter_async_context(engine_on(url, trace=trace))

    async def call() -> int:
        await made.session(model).send(QUESTION)
        return 1

    async def stream() -> int:
        async with made.session(model).stream(QUESTION) as turn:
            return await _counted(turn)

    return call, stream


async def engine_chat(url: str, stack: AsyncExitStack) -> Client:
    return await engine(url, stack, "chat:bench")


async def engine_without_store(url: str, stack: AsyncExitStack) -> Client:
    return await engine(url, stack, "chat:bench", trace=False)


async def engine_messages(url: str, stack: AsyncExitStack) -> Client:
    return await engine(url, stack, "messages:bench")


async def openai_chat(url: str, stack: AsyncExitStack) -> Client:
    from openai import AsyncOpenAI

    client = await stack.enter_async_context(AsyncOpenAI(api_key="x", base_url=f"{url}/v1"))

    async def call() -> int:
        await client.chat.completions.create(model="bench", messages=TURNS)
        return 1

    async def stream() -> int:
        return await _counted(await client.chat.completions.create(model="bench", messages=TURNS, stream=True))

    return call, stream


async def anthropic_messages(url: str, stack: AsyncExitStack) -> Client:
    from anthropic import AsyncAnthropic

    client = await stack.enter_async_context(AsyncAnthropic(api_key="x", base_url=url))

    async def call() -> int:
        await client.messages.create(model="bench", messages=TURNS, max_tokens=LIMIT)
        return 1

    async def stream() -> int:
        return await _counted(
            await client.messages.create(model="bench", messages=TURNS, max_tokens=LIMIT, stream=True)
        )

    return call, stream


async def pydantic_ai_chat(url: str, stack: AsyncExitStack) -> Client:
    from pydantic_ai.direct import model_request, model_request_stream
    from pydantic_ai.messages import ModelRequest
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("bench", provider=OpenAIProvider(api_key="x", base_url=f"{url}/v1"))
    prompt = [ModelRequest.user_text_prompt(QUESTION)]

    async def call() -> int:
        await model_request(model, prompt)
        return 1

    async def stream() -> int:
        async with model_request_stream(model, prompt) as events:
            return await _counted(events)

    return call, stream


async def litellm_chat(url: str, stack: AsyncExitStack) -> Client:
    import litellm

    where = {"model": "openai/bench", "api_base": f"{url}/v1", "api_key": "x", "messages": TURNS}

    async def call() -> int:
        await litellm.acompletion(**where)
        return 1

    async def stream() -> int:
        return await _counted(await litellm.acompletion(**where, stream=True))

    return call, stream


GATEWAY = """
[gateway]
observability.enabled = false
[models.bench]
routing = ["bench"]
[models.bench.providers.bench]
type = "openai"
api_base = "{url}/v1/"
model_name = "bench"
api_key_location = "none"
"""


@contextmanager
def gateway_file(url: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gateway.toml")
        path.write_text(GATEWAY.format(url=url))
        yield str(path)


async def tensorzero_chat(url: str, stack: AsyncExitStack) -> Client:
    """TensorZero's gateway embedded in this process, which stores nothing."""
    from tensorzero import AsyncTensorZeroGateway

    configuration = stack.enter_context(gateway_file(url))
    opening: Any = AsyncTensorZeroGateway.build_embedded(config_file=configuration)
    gateway = await stack.enter_async_context(await opening)
    fields: Any = {"model_name": "bench", "input": {"messages": TURNS}}

    async def call() -> int:
        await gateway.inference(**fields)
        return 1

    async def stream() -> int:
        return await _counted(await gateway.inference(**fields, stream=True))

    return call, stream


async def langchain_chat(url: str, stack: AsyncExitStack) -> Client:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="bench", api_key="x", base_url=f"{url}/v1")

    async def call() -> int:
        await model.ainvoke(QUESTION)
        return 1

    return call, lambda: _counted(model.astream(QUESTION))


CLIENTS: dict[str, tuple[Callable[[str, AsyncExitStack], Awaitable[Client]], str | None, str]] = {
    "by-hand": (by_hand, None, "raw-chat"),
    "raw-chat": (raw_chat, None, "raw-chat"),
    "callboard-adapter-chat": (adapter_chat, None, "raw-chat"),
    "callboard-engine-chat": (engine_chat, None, "raw-chat"),
    "callboard-engine-chat-no-store": (engine_without_store, None, "raw-chat"),
    "tensorzero": (tensorzero_chat, "tensorzero", "raw-chat"),
    "openai": (openai_chat, "openai", "raw-chat"),
    "pydantic-ai": (pydantic_ai_chat, "pydantic_ai", "raw-chat"),
    "litellm": (litellm_chat, "litellm", "raw-chat"),
    "langchain-openai": (langchain_chat, "langchain_openai", "raw-chat"),
    "raw-messages": (raw_messages, None, "raw-messages"),
    "callboard-adapter-messages": (adapter_messages, None, "raw-messages"),
    "callboard-engine-messages": (engine_messages, None, "raw-messages"),
    "anthropic": (anthropic_messages, "anthropic", "raw-messages"),
}
"""Each client, the module that it needs, and its floor."""


async def measure(name: str, url: str, mode: str, count: int) -> float:
    """CPU seconds for each call, or for each event of a stream."""
    make, _, _ = CLIENTS[name]
    async with AsyncExitStack() as stack:
        call, stream = await make(url, stack)
        work = call if mode == "call" else stream
        for _ in range(3):
            await work()
        events = 0
        before = time.process_time()
        for _ in range(count):
            events += await work()
        return (time.process_time() - before) / events


def in_own_process(name: str, url: str, mode: str, count: int) -> float | str:
    """Measure in a new process. Returns the figure or the error."""
    command = [sys.executable, "-m", "benchmarks.peers", name, url, mode, str(count)]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # otherwise it downloads its prices
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False
        )
        return float(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        lines = done.stderr.strip().splitlines() if isinstance(error, IndexError | ValueError) else []
        return lines[-1][:60] if lines else type(error).__name__


def rows(quick: bool) -> list[Row]:
    here = [name for name, (_, module, _) in CLIENTS.items() if module is None or find_spec(module) is not None]
    found = [Row(name, "not installed") for name in CLIENTS if name not in here]
    with reply_server(DELTAS) as url:
        found += _of_mode(here, url, "call", 10 if quick else 200, 1 if quick else 3)
        found += _of_mode(here, url, "stream", 2 if quick else 20, 1 if quick else 3)
    return found


def _of_mode(names: Sequence[str], url: str, mode: str, count: int, repetitions: int) -> Iterator[Row]:
    """The time of a call or an event for each client: the minimum of several processes, which alternate."""
    best: dict[str, float] = {}
    failed: dict[str, str] = {}
    for _ in range(repetitions):
        for name in names:
            spent = in_own_process(name, url, mode, count)
            if isinstance(spent, str):
                failed[name] = spent
            else:
                best[name] = min(best.get(name, spent), spent)
    for name in names:
        title = f"{name}, per {'call' if mode == 'call' else 'event'}"
        floor = best.get(CLIENTS[name][2])
        if name in best and floor:
            yield against(title, best[name], floor)
        else:
            yield Row(f"{title}: {failed.get(name, 'no floor')}", "failed")


def main() -> None:
    name, url, mode, count = sys.argv[1:]
    spent = asyncio.run(measure(name, url, mode, int(count)))
    print(json.dumps(spent), flush=True)
    os._exit(0)  # some clients leave threads running


if __name__ == "__main__":
    main()
