"""Where the API's methods are: under a version, and under the name of a model or of an operation."""

from __future__ import annotations

from urllib.parse import quote


def model_name(model: str) -> str:
    """The full name of a model: in ``models``, unless it names a folder of its own (``tunedModels/mine``)."""
    return model if "/" in model else f"models/{model}"


def path_of(version: str, name: str, method: str = "") -> str:
    """The path of a model or an operation, or of a method on it.

    Args:
        version: The API's version.
        name: The full name of the model or the operation.
        method: The method; empty for the thing itself.
    """
    path = f"/{version}/{quote(name, safe='/-._~@')}"
    return f"{path}:{method}" if method else path
