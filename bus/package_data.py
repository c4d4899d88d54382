"""Files that come with a module: prices, tables of models, style sheets."""

from __future__ import annotations

from pkgutil import get_data


def package_data(module: str, name: str) -> bytes:
    """Read a file that stands beside a module, or in a folder there.

    The module's loader reads it, so the package may stand in a zip file.

    Args:
        module: The module's ``__name__``.
        name: The file's path from the module's folder, with slashes.

    Raises:
        OSError: There is no such file.
    """
    data = get_data(module, name)
    assert data is not None, f"the loader of {module} reads no files"
    return data
