"""Compares gateways: CPU time of their processes for a request and a delta, added latency, and memory.

Each gateway is started as its documentation says, as one process, in front of the same server of replies. The same
client sends requests to each of them, and to the server itself as the floor. Callboard has its trace on, and
LiteLLM stores nothing. LiteLLM is measured if ``litellm[proxy]`` is installed. Portkey is measured if
`CALLBOARD_NPM` names a folder with the package ``@portkey-ai/gateway``, and `NODE` (or the path) has Node. Portkey
1.15.2 fails each stream on Node 20 and 22 ("TypeError: immutable"), so only its whole calls are measured.
TensorZero's gateway is not measured: its packages have only the client and an embedded gateway without a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.support.reply_server import ROOT, reply_server

from .table import Row, against

DELTAS = 500
AT_ONCE = 16
START_SECONDS = 120.0
"""The time limit for a gateway's first response. LiteLLM's proxy takes half a minute to start."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Gateway(NamedTuple):
    """One gateway: its command, and the requests of its clients."""

    name: str
    command: Sequence[str]
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}


def gateways(folder: Path, url: str) -> list[tuple[Gateway, int]]:
    """The gateways that are installed here, each with its port."""
    found = [_callboard(folder, url, _free_port())]
    if all(map(find_spec, ("litellm", "fastapi", "orjson"))):
        found.append(_litellm(folder, url, _free_port()))
    node = os.environ.get("NODE") or shutil.which("node")
    script = Path(os.environ.get("CALLBOARD_NPM", "")) / "node_modules/@portkey-ai/gateway/build/start-server.js"
    if node is not None and script.is_file():
        found.append(_portkey(node, script, url, _free_port()))
    return found


def _callboard(folder: Path, url: str, port: int) -> tuple[Gateway, int]:
    models = folder / "models.yaml"
    adapter = {"type": "openai_compatible", "base_url": f"{url}/v1", "api_key_env": "BENCH_KEY"}
    # YAML reads JSON.
    models.write_text(json.dumps({"adapters": {"bench": adapter}, "models": {"bench": {"adapter": "bench"}}}))
    options = ("--port", str(port), "--no-web", "--models-file", str(models), "--db", str(folder / "trace.db"))
    return Gateway("Callboard", [sys.executable, "-m", "callboard", "serve", *options]), port


def _litellm(folder: Path, url: str, port: int) -> tuple[Gateway, int]:
    config = folder / "litellm.yaml"
    served = {"model": "openai/bench", "api_base": f"{url}/v1", "api_key": "bench"}
    config.write_text(json.dumps({"model_list": [{"model_name": "bench", "litellm_params": served}]}))
    program = "from litellm.proxy.proxy_cli import run_server; run_server()"
    options = ("--config", str(config), "--port", str(port), "--host", "127.0.0.1", "--telemetry", "False")
    keyless = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}  # as Callboard does on this machine
    return Gateway("LiteLLM's proxy", [sys.executable, "-c", program, *options], environment=keyless), port


def _portkey(node: str, script: Path, url: str, port: int) -> tuple[Gateway, int]:
    headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": f"{url}/v1"}
    command = [node, str(script), f"--port={port}", "--headless"]
    return Gateway("Portkey's gateway", command, headers=headers), port


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# --- The client, a process of its own ---


def _body(*, stream: bool) -> dict[str, object]:
    messages = [{"role": "user", "content": "Go on."}]
    return {"model": "bench", "max_tokens": 1000, "stream": stream, "messages": messages}


async def load(
    url: str, path: str, count: int, at_once: int, *, streamed: bool, headers: Mapping[str, str]
) -> None:
    """Send requests, and print the seconds from each request to its first bytes."""
    limits = httpx.Limits(max_connections=at_once)
    waiting, seconds = iter(range(count)), list[float]()
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120, limits=limits) as client:

        async def one() -> None:
            for _ in waiting:
                start = time.perf_counter()
                async with client.stream("POST", path, json=_body(stream=streamed)) as reply:
                    arrived = events = 0
                    async for data in reply.aiter_bytes():
                        arrived += 1
                        if arrived == 1:
                            seconds.append(time.perf_counter() - start)
                        events += data.count(b"data:")
                    if reply.status_code != 200 or (streamed and events < DELTAS):
                        raise RuntimeError(f"{url}: status {reply.status_code}, {events} events")

        await asyncio.gather(*(one() for _ in range(at_once)))
    print(json.dumps(seconds))


def _asked(gateway: Gateway, url: str, count: int, at_once: int, how: str) -> list[float]:
    """Send requests through the client process. Returns the seconds to the first bytes of each reply."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.gateways",
        "load",
        url,
        gateway.path,
        str(count),
        str(at_once),
        how,
    ]
    headers = {"authorization": "Bearer bench", **gateway.headers}
    done = subprocess.run([*command, json.dumps(headers)], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{gateway.name}: {done.stderr[-500:]}")
    return [float(each) for each in json.loads(done.stdout)]


# --- The processes ---


def _tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process and its descendants have used."""
    total = 0
    for each in _tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:13]))
    return total / _TICKS


def resident_bytes(pid: int) -> int:
    """The resident memory of a process and its descendants."""
    total = 0
    for each in _tree(pid):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


@contextlib.contextmanager
def started(gateway: Gateway, port: int, folder: Path) -> Iterator[tuple[int, str]]:
    """Start a gateway. Yields its process id and its URL."""
    environment = {**os.environ, "BENCH_KEY": "bench", "CALLBOARD_HOME": str(folder), **gateway.environment}
    with (folder / f"{port}.log").open("wb") as log:
        process = subprocess.Popen(
            gateway.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(RuntimeError):
                _asked(gateway, url, 1, 1, "call")
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{gateway.name}: {(folder / f'{port}.log').read_text()[-800:]}")
            time.sleep(0.5)
        yield process.pid, url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        process.kill()


def _spent(gateway: Gateway, running: tuple[int, str], count: int, how: str, repetitions: int) -> float:
    """The minimum CPU seconds of the gateway for a request or a stream."""
    pid, url = running
    _asked(gateway, url, AT_ONCE, AT_ONCE, how)
    best = float("inf")
    for _ in range(repetitions):
        before = cpu_seconds(pid)
        _asked(gateway, url, count, AT_ONCE, how)
        best = min(best, cpu_seconds(pid) - before)
    return best / count


def _measured(
    gateway: Gateway, running: tuple[int, str], bare: Mapping[str, float], quick: bool
) -> dict[str, float]:
    """The costs of a gateway: CPU time of a call and of a delta, and the seconds that it adds to their first
    bytes.
    """
    count, streams, alone, repetitions = (16, 16, 10, 1) if quick else (320, 64, 100, 2)
    found: dict[str, float] = {}
    for how, many, pieces in (("call", count, 1), ("stream", streams, DELTAS)):
        try:
            found[f"added to a {how}"] = statistics.median(_asked(gateway, running[1], alone, 1, how)) - bare[how]
            found[how] = _spent(gateway, running, many, how, repetitions) / pieces
        except RuntimeError as error:  # one failed gateway should not discard the other results
            print(f"{gateway.name}, {how}: {str(error).strip().rpartition(chr(10))[2]}", file=sys.stderr)
    return found


def rows(quick: bool) -> list[Row]:
    found: list[Row] = []
    with reply_server(DELTAS) as url, tempfile.TemporaryDirectory(prefix="callboard-bench-") as temporary:
        folder, server, own_costs = Path(temporary), Gateway("the server", ()), dict[str, float]()
        times = 10 if quick else 100
        bare = {how: statistics.median(_asked(server, url, times, 1, how)) for how in ("call", "stream")}
        for gateway, port in gateways(folder, url):
            try:
                with started(gateway, port, folder) as running:
                    costs = _measured(gateway, running, bare, quick)
                    memory = resident_bytes(running[0])
            except RuntimeError as error:
                found.append(Row(f"{gateway.name}: failed", str(error).strip().rpartition("\n")[2][-60:]))
                continue
            own_costs = own_costs or costs
            for how, what in (("call", "a request"), ("stream", "a delta")):
                if how not in costs:
                    found.append(Row(f"{gateway.name}: {what}", "fails"))
                    continue
                first, added = (
                    "the first token, one stream" if how == "stream" else "a call",
                    costs[f"added to a {how}"],
                )
                found += [
                    against(f"{gateway.name}: {what}", costs[how], own_costs[how]),
                    Row(f"{gateway.name}: added to {first}, median", _ms(added), _ms(bare[how])),
                ]
            found.append(Row(f"{gateway.name}: memory", f"{memory / 1e6:.0f} MB"))
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    _, _, url, path, count, at_once, how, headers = sys.argv
    asyncio.run(load(url, path, int(count), int(at_once), streamed=how == "stream", headers=json.loads(headers)))
