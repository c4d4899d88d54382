"""The child process in which llama.cpp runs, with its own HTTP server.

Why a process of its own: the constructor of xllamacpp's `Server` holds the GIL until the model is loaded (0.6 s
for 98 MB, and it grows with the model), and an abort in C++ ends the process it happens in. Here it stalls
nobody and kills only itself.

The parent talks to it so:

* stdin, one line of JSON, the configuration (`Configuration` below); the API key comes this way, because
  arguments and environments can be read by other processes.
* stdout, one line of JSON: ``{"url": "http://127.0.0.1:41599"}`` once it answers, or
  ``{"error": …, "kind": "import" | "init"}`` and exit code 1.
* stdin again: anything, or its end, ends the process at once. The operating system closes a dead parent's
  pipes, so the child goes however the parent went, also by ``kill -9``.
* stderr: llama.cpp's words, for the parent's error texts. Its log level here is 1, errors only, because at 0 it
  does not even say why a model can't be loaded: any failure is then the same "Failed to init server".

The file imports the standard library and xllamacpp, nothing of Callboard, so that it can be run by path,
whatever the working directory and the import path of the parent are.
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
"""How long a failed start stays: llama.cpp writes why from a thread of its own, which an exit doesn't wait for."""

CACHE_MIB = 256


class Configuration(TypedDict):
    """The parent's line on stdin."""

    model_path: str
    """The path of the GGUF file."""
    model_alias: str
    """The name of the model in replies."""
    api_key: str
    """The key that the server demands."""
    context_tokens: int
    """The tokens of all slots together."""
    slots: int
    """The number of requests that run side by side."""
    port: int
    """The port; 0 lets the system choose."""
    threads: int
    """The number of threads that compute."""
    embeddings: str
    """The way in which the vectors of a text's tokens become one, ``model`` for the model's own way. Empty is no
    vectors."""
    parent: int
    """The parent's process id."""
    import_path: str
    """The folder in which xllamacpp was found, for a parent that changed its own import path."""


def start_server(configuration: Configuration) -> Any:
    """xllamacpp's server, listening. Blocks until the model is loaded.

    Raises ImportError when xllamacpp can't be loaded, RuntimeError when llama.cpp refuses.
    """
    try:
        import xllamacpp
    except ModuleNotFoundError:
        sys.path.append(configuration["import_path"])
        import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = configuration["model_path"]
    parameters.model_alias = {configuration["model_alias"]}  # or replies name the path as the model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = configuration["port"]
    parameters.api_keys = [configuration["api_key"]]
    parameters.n_ctx = configuration["context_tokens"]
    parameters.n_parallel = configuration["slots"]
    parameters.cpuparams.n_threads = configuration["threads"]  # to generate
    parameters.cpuparams_batch.n_threads = configuration["threads"]  # to read prompts
    if configuration["embeddings"]:
        parameters.embedding = True
        # A text is read in one go, so the largest one is as large as a batch.
        parameters.n_batch = parameters.n_ubatch = configuration["context_tokens"] // configuration["slots"]
        if configuration["embeddings"] != "model":
            pooling = f"LLAMA_POOLING_TYPE_{configuration['embeddings'].upper()}"
            parameters.pooling_type = getattr(xllamacpp.llama_pooling_type, pooling)
    if hasattr(parameters, "fit_params") and not any("GPU" in kind for kind in device_kinds()):
        parameters.fit_params = False  # it loads the model once more to see what of it a GPU can hold
    parameters.use_jinja = True  # the model's own chat template; without it tools are not even rendered
    parameters.cache_ram_mib = CACHE_MIB  # of past prompts; llama.cpp's own bound is 8 GiB
    parameters.verbosity = 1
    parameters.ui = False
    parameters.endpoint_slots = False  # it would show every caller's prompt
    return xllamacpp.Server(parameters)


def device_kinds() -> list[str]:
    """What llama.cpp can compute on, by ggml's names: one of them ends with ``_CPU``."""
    import xllamacpp

    return [device["type"].name for device in xllamacpp.get_device_info()]


def wait_for_end(parent: int | None) -> None:
    """Return when stdin has anything to say or ends, or when the parent has gone.

    The second is for a parent that forked: its children keep a copy of the pipe's other end, and stdin stays
    open until the last of them is gone.
    """
    if sys.platform == "win32":
        os.read(0, 1)
        return
    while not select.select([0], [], [], PARENT_CHECK_SECONDS)[0]:
        if parent is not None and os.getppid() != parent:
            return


def main() -> None:
    """Read the configuration, serve, and end with stdin."""
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # unbuffered, as the rest of it is for `select`
        configuration: Configuration = json.loads(stdin.readline())
    # Behind a launcher that doesn't `exec`, the parent was never our direct one, and there is nothing to watch.
    # Asked now, for once the model is loaded a direct one may be gone already.
    parent = configuration["parent"] if os.getppid() == configuration["parent"] else None
    # What a library prints must not be taken for our line: from here on, file 1 is stderr.
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
    os._exit(0)  # not by `del server`: that waits for requests, and nobody is left to read their replies


def tell(file: int, answer: dict[str, str]) -> None:
    """Write the one line for the parent; a parent that has gone is no error, stdin tells us next."""
    try:
        os.write(file, json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        pass
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
