"""The child process in which llama.cpp runs, with its own HTTP server.

llama.cpp needs a separate process, because xllamacpp's `Server` holds the GIL until the model is loaded (0.6 s for
98 MB), and an abort in C++ ends its process. The parent uses these pipes:

* stdin, one line of JSON: the `Configuration`, with the API key, because arguments and environments are readable.
* stdout, one line of JSON: ``{"url": "http://127.0.0.1:41599"}`` once it answers, or ``{"error": …, "kind":
  "import" | "init"}`` and exit code 1.
* stdin again: any data, or its end, ends the process immediately, also if the parent dies by ``kill -9``.
* stderr: llama.cpp's errors (log level 1; at 0 it gives no reasons), for the parent's error texts.

The file imports only the standard library and xllamacpp, so that it can be run by path from anywhere.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Any, TypedDict

PARENT_CHECK_SECONDS = 1.0
LAST_WORDS_SECONDS = 0.3
"""Seconds that a failed start waits, so that llama.cpp's log thread can write its last lines."""

CACHE_MIB = 256


class Configuration(TypedDict):
    model_path: str
    model_alias: str
    api_key: str
    context_tokens: int
    """The tokens of all slots together."""
    slots: int
    """The number of concurrent requests."""
    port: int
    """The port; 0 lets the system choose."""
    threads: int
    embeddings: str
    """The pooling of a text's vectors, ``model`` for the model's own. Empty means no vectors."""
    parent: int
    import_path: str
    """The folder of xllamacpp, for a parent that changed its own import path."""


def start_server(configuration: Configuration) -> Any:
    """xllamacpp's server, listening. Blocks until the model is loaded.

    Raises ImportError if xllamacpp can't be loaded, RuntimeError if llama.cpp refuses.
    """
    try:
        import xllamacpp
    except ModuleNotFoundError:
        sys.path.append(configuration["import_path"])
        import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = configuration["model_path"]
    parameters.model_alias = {configuration["model_alias"]}  # otherwise replies have the path as the model's name
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = configuration["port"]
    parameters.api_keys = [configuration["api_key"]]
    parameters.n_ctx = configuration["context_tokens"]
    parameters.n_parallel = configuration["slots"]
    parameters.cpuparams.n_threads = configuration["threads"]  # threads for generation
    parameters.cpuparams_batch.n_threads = configuration["threads"]  # threads for reading prompts
    if configuration["embeddings"]:
        parameters.embedding = True
        # A text is processed in one batch, so the largest text is as large as a batch.
        parameters.n_batch = parameters.n_ubatch = configuration["context_tokens"] // configuration["slots"]
        if configuration["embeddings"] != "model":
            pooling = f"LLAMA_POOLING_TYPE_{configuration['embeddings'].upper()}"
            parameters.pooling_type = getattr(xllamacpp.llama_pooling_type, pooling)
    if hasattr(parameters, "fit_params") and not any("GPU" in kind for kind in device_kinds()):
        parameters.fit_params = False  # fitting would load the model twice to measure the GPU
    parameters.use_jinja = True  # the model's own chat template; without it tools are not rendered
    parameters.cache_ram_mib = CACHE_MIB  # the cache of past prompts; llama.cpp's own limit is 8 GiB
    parameters.verbosity = 1
    parameters.ui = False
    parameters.endpoint_slots = False  # this endpoint would show every caller's prompt
    return xllamacpp.Server(parameters)


def device_kinds() -> list[str]:
    """The devices of llama.cpp, by ggml's names: one of them ends with ``_CPU``."""
    import xllamacpp

    return [device["type"].name for device in xllamacpp.get_device_info()]


def wait_for_end(parent: int | None) -> None:
    """Return when stdin has data or ends, or when the parent is gone.

    Checking the parent is needed if it has forked: its children hold a copy of the pipe's other end, so stdin
    stays open until the last child ends.
    """
    if sys.platform == "win32":
        os.read(0, 1)
        return
    while not select.select([0], [], [], PARENT_CHECK_SECONDS)[0]:
        if parent is not None and os.getppid() != parent:
            return


def main() -> None:
    """Read the configuration from stdin, and serve requests until stdin is closed."""
    # unbuffered, because `select` does not see buffered data
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        configuration: Configuration = json.loads(stdin.readline())
    # If a launcher started this process, the configured parent is not its direct parent and can't be watched. The
    # check is made now, because a direct parent may have ended when the model is loaded.
    parent = configuration["parent"] if os.getppid() == configuration["parent"] else None
    # A library's output must not be mistaken for the answer, so file descriptor 1 is redirected to stderr.
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        server = start_server(configuration)
    except Exception as error:
        kind = "import" if isinstance(error, ImportError) else "init"
        tell(answer, {"error": f"{type(error).__name__}: {error}", "kind": kind})
        time.sleep(LAST_WORDS_SECONDS)
        os._exit(1)
    tell(answer, {"url": server.listening_address})
    wait_for_end(parent)
    os._exit(0)  # not `del server`, which would wait for requests whose readers are gone


def tell(file: int, answer: dict[str, str]) -> None:
    """Write the one line for the parent. If the parent is gone, this is not an error, because stdin ends next."""
    try:
        os.write(file, json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        pass
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
