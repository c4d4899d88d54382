"""The packages of `pip install callboard` without extras are enough for each call."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from functools import cache
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .support.provider_server import provider_server

ROOT = Path(__file__).parent.parent

REPLIES = {
    "anthropic": b'{"type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Hi"}],'
    b'"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1}}',
    "openai_compatible": b'{"model":"m","choices":[{"message":{"role":"assistant","content":"Hi"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}',
}

CALLS = """
import asyncio, sys
from collections import Counter

installed, given = set(sys.argv[1].split(",")), sys.argv[2:]
missed = Counter()

class OnlyThese:
    "Hides what a plain install has not."
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in installed and top not in sys.stdlib_module_names:
            missed[name] += 1
            raise ModuleNotFoundError(f"no module named {name!r} in a plain install", name=name)
        return None

sys.meta_path.insert(0, OnlyThese())

from callboard.adapters import AdapterConfig, CanonicalRequest, create_adapter
from callboard.bus.values.messages import Message

async def main(kind, url):
    adapter = create_adapter(kind, AdapterConfig(api_key="k", base_url=url), name="x")
    for call in range(3):
        missed.clear()
        message = Message.user("Hello")
        request = CanonicalRequest(
            request_id=f"req_{call}", messages=(message,), model="x:m", max_output_tokens=9
        )
        assert (await adapter.complete(request)).text == "Hi"
    await adapter.close()
    print(kind, dict(missed))

for kind, url in zip(given[::2], given[1::2]):
    asyncio.run(main(kind, url))
"""


@cache
def plain_modules() -> set[str]:
    """The top-level modules of the required packages and of their own requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted, required = list(project["dependencies"]), set[str]()
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name not in required and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            required.add(name)
            wanted += importlib.metadata.requires(name) or ()
    distributions = importlib.metadata.packages_distributions()
    modules = {module for module, names in distributions.items() if required & {*map(canonicalize_name, names)}}
    return modules | {"callboard", "bus", "adapters", "tracestore", "engine"}


def test_a_call_searches_for_no_missing_module() -> None:
    """A failed search for a module is repeated by every call, and costs more than the call itself."""
    with ExitStack() as stack:
        servers = [(kind, stack.enter_context(provider_server(200, said)).url) for kind, said in REPLIES.items()]
        arguments = [",".join(sorted(plain_modules())), *chain.from_iterable(servers)]
        done = subprocess.run(
            [sys.executable, "-c", CALLS, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=50
        )
    assert (done.returncode, done.stdout) == (0, "anthropic {}\nopenai_compatible {}\n"), done.stderr


ANSWER = """
import sys
from callboard import generate_sync

assert generate_sync("x:m", "Hello").text == "Hi"
print(sorted(set(sys.argv[1].split(",")) & set(sys.modules)))
"""

HEAVY = (
    *("httpx", "httpcore", "h11", "trio", "certifi", "http.client", "urllib.request", "structlog", "rich"),
    *("prompt_toolkit", "jsonschema", "referencing", "pydantic", "xllamacpp", "unittest"),
)
"""Modules whose import takes tens of milliseconds and that the first reply does not need."""


def test_a_first_answer_imports_nothing_heavy(tmp_path: Path) -> None:
    with provider_server(200, REPLIES["openai_compatible"]) as server:
        models = {
            "adapters": {"x": {"type": "openai_compatible", "base_url": server.url, "api_key_env": "X_KEY"}},
            "models": {"x:m": {"adapter": "x"}},
        }
        (tmp_path / "models.yaml").write_text(json.dumps(models))  # JSON is also valid YAML
        done = subprocess.run(
            [sys.executable, "-c", ANSWER, ",".join(HEAVY)],
            env={**os.environ, "CALLBOARD_HOME": str(tmp_path), "X_KEY": "k"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=50,
        )
    assert (done.stdout, done.stderr) == ("[]\n", "")
