"""`callboard image`: an image from a prompt, or from other images, as a file."""

from __future__ import annotations

import argparse
import mimetypes
from pathlib import Path

from callboard.bus import CallboardError
from callboard.engine import Engine, ImageResult
from callboard.engine.media.images import ImageOptions

from ..common.arguments import add_key, add_model, add_models_file
from ..common.engine import on_engine, tell_warnings
from ..common.harmless import note, say
from ..common.money import cost_text


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "image",
        help="Make an image from a prompt",
        description="Makes an image of what the prompt says; with --edit it changes an image, or composes "
        "several. Of a provider that gives an address and no bytes, the address is printed instead.",
    )
    parser.add_argument("prompt", metavar="PROMPT", help="what to show, or what to change")
    add_model(parser)
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="several get a number each"
    )
    parser.add_argument("--edit", type=Path, action="append", default=[], metavar="FILE", help="may be repeated")
    parser.add_argument("--mask", type=Path, metavar="FILE", help="a PNG; what is transparent in it may change")
    parser.add_argument("-n", type=int, default=1, metavar="N", help="how many (default: 1)")
    parser.add_argument("--size", metavar="SIZE", help="such as 1024x1024, or as the provider calls it")
    parser.add_argument("--aspect-ratio", metavar="RATIO", help="such as 16:9")
    parser.add_argument("--quality", metavar="WORD", help="such as low, medium, high")
    parser.add_argument("--background", metavar="WORD", help="such as transparent")
    parser.add_argument("--format", metavar="WORD", help="of the file: png, jpeg, webp")
    add_models_file(parser)
    add_key(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""

    async def work(engine: Engine) -> ImageResult:
        edited: list[Path] = arguments.edit
        model, options = arguments.model, _options(arguments)
        if edited:
            return await engine.edit_image(arguments.prompt, edited, mask=arguments.mask, model=model, **options)
        return await engine.generate_image(arguments.prompt, model=model, **options)

    if arguments.mask is not None and not arguments.edit:
        raise CallboardError("a mask needs an image that it lies upon: give it with --edit")
    try:
        result = on_engine(arguments, work)
        _write(result, arguments.output)
    except (OSError, ValueError) as error:
        raise CallboardError(str(error)) from error
    tell_warnings(result.warnings)
    what = f"{len(result.images)} of {result.operation}, {result.model}"
    note(f"{what}: {cost_text(result.cost)}")
    return 0


def _options(arguments: argparse.Namespace) -> ImageOptions:
    return {
        "n": arguments.n,
        "size": arguments.size,
        "aspect_ratio": arguments.aspect_ratio,
        "quality": arguments.quality,
        "background": arguments.background,
        "output_format": arguments.format,
        "key": arguments.key,
    }


def _write(result: ImageResult, output: Path) -> None:
    """Raises OSError."""
    for number, image in enumerate(result.images, 1):
        path = output if len(result.images) == 1 else output.with_stem(f"{output.stem}-{number}")
        if image.data is None:
            say(image.url or "")
            continue
        image.save(path)
        kind = mimetypes.guess_type(path.name)[0]
        other = "" if kind in (None, image.media_type) else f", which is {image.media_type}"
        size = "" if image.width is None else f", {image.width}x{image.height}"
        note(f"Written: {path}{size}{other}")
