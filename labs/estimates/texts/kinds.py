"""The kinds of text in requests. The same seed always gives the same text."""

from __future__ import annotations

import base64
import csv
import io
import json
import uuid
from collections.abc import Callable
from functools import partial
from random import Random

from .languages import SENTENCES
from .source_code import LINES

WORDS = (
    "account action agent amount answer archive batch billing branch buffer cache call channel city client cluster "
    "column comment commit config content context count country created currency customer data date default delivery "
    "description detail device document email enabled entry error event expires failed feature field file filter "
    "first format group handle header health history image index input invoice item job key label language last "
    "length level limit link list local location log manager message method metric mode model module name network "
    "node note number object offset option order owner page parent password path payment period phone pipeline "
    "policy port price priority process product profile project prompt queue range rate reason record region "
    "release report request result retry role route rule schedule schema score search secret section server service "
    "session shipping signature size source stage start state status storage store stream street summary support "
    "system table tag target task template tenant thread ticket time title token total trace type unit update url "
    "user value variant vendor version video warehouse weight window worker zone"
).split()
NAMES = (
    "Alice Johnson,Bob Miller,Chloé Dubois,Dmitri Volkov,Elena Rossi,Farid Haddad,Grace Okafor,Hiroshi Tanaka,"
    "Ingrid Larsen,João Silva,Kavya Sharma,Liam O'Connor,Mei Lin,Noah Weber,Olga Nowak,Priya Patel,Quentin Moreau"
).split(",")
EMOJI = "😀 😂 🥲 😍 🤔 👍 🙏 🎉 🔥 ✅ ❌ ⚠️ 🚀 💡 📈 📦 🐛 🧪 ❤️ 👩‍💻 🇩🇪 🇯🇵 👋🏽 🌍 ☕ 🍕 ⏰ 🔒".split()
_ASCII = "".join(map(chr, range(33, 127)))


def text(kind: str, seed: int) -> str:
    """Generate the text of a kind and a seed, of about 40 to 6,000 characters."""
    random = Random(f"{kind} {seed}")
    size = int(40 * 120 ** random.random())
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        parts.append(KINDS[kind](random))
    return "".join(parts)


def _prose(language: str, random: Random) -> str:
    # scripts without spaces between words have none between sentences, either
    ending = random.choice(("\n\n", " ", " ", " ")) if language not in ("chinese", "japanese") else ""
    return random.choice(SENTENCES[language]) + ending


def _code(language: str, random: Random) -> str:
    line = random.choice(LINES[language])
    names = {place: _identifier(random) for place in "abc"}
    constants = {place: "_".join(random.sample(WORDS, random.randrange(1, 4))).upper() for place in "AB"}
    return line.format(**names, **constants, n=random.randrange(1000), text=_phrase(random)) + "\n"


def _capitals(random: Random) -> str:
    line = random.choice(SENTENCES["english"])
    return (line.upper() if random.random() < 0.5 else line.title()) + random.choice((" ", "\n"))


def _identifier(random: Random) -> str:
    words = random.sample(WORDS, random.choice((1, 1, 2, 2, 3)))
    if random.random() < 0.5:
        return "_".join(words)
    return words[0] + "".join(word.capitalize() for word in words[1:])


def _phrase(random: Random) -> str:
    return " ".join(random.sample(WORDS, random.randrange(2, 7)))


def _value(random: Random, depth: int = 0) -> object:
    choice = random.randrange(11 if depth < 3 else 8)
    if choice < 2:
        return random.randrange(10 ** random.randrange(1, 8))
    if choice == 2:
        return round(random.uniform(-1000, 1000), random.randrange(1, 6))
    if choice == 3:
        return random.choice((True, False, None))
    if choice < 7:
        return random.choice((_phrase, _name, _stamp, _address, _identity))(random)
    if choice == 7:
        return random.choice(WORDS)
    if choice == 8:
        return [_value(random, depth + 1) for _ in range(random.randrange(1, 5))]
    return _object(random, depth + 1)


def _object(random: Random, depth: int = 0) -> dict[str, object]:
    return {_identifier(random): _value(random, depth) for _ in range(random.randrange(2, 8))}


def _name(random: Random) -> str:
    return random.choice(NAMES)


def _stamp(random: Random) -> str:
    day, time = (
        f"202{random.randrange(7)}-{random.randrange(1, 13):02}-{random.randrange(1, 29):02}",
        _time(random),
    )
    return f"{day}T{time}Z"


def _time(random: Random) -> str:
    return f"{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}"


def _identity(random: Random) -> str:
    return str(uuid.UUID(int=random.getrandbits(128)))


def _address(random: Random) -> str:
    host = f"{random.choice(('www', 'api', 'shop', 'docs'))}.{random.choice(WORDS)}-{random.choice(WORDS)}.example"
    path = "/".join(random.sample(WORDS, random.randrange(1, 5)))
    query = f"?{random.choice(WORDS)}={random.randrange(10**6)}&{random.choice(WORDS)}={random.choice(WORDS)}"
    return f"https://{host}/{path}" + (query if random.random() < 0.5 else "")


def _json(
    random: Random,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    ensure_ascii: bool = True,
) -> str:
    objects = [_object(random) for _ in range(random.randrange(1, 4))]
    return json.dumps(objects, indent=indent, separators=separators, ensure_ascii=ensure_ascii) + "\n"


def _schema(random: Random) -> str:
    properties = {
        _identifier(random): {
            "description": _phrase(random),
            "type": random.choice(("string", "integer", "boolean")),
        }
        for _ in range(random.randrange(1, 6))
    }
    required = [*properties][: random.randrange(1, 4)]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return json.dumps(schema, separators=random.choice(((",", ":"), (", ", ": ")))) + "\n"


def _csv(random: Random) -> str:
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow(random.sample(WORDS, 6))
    for row in range(random.randrange(3, 12)):
        amount = f"{random.uniform(0, 5000):.2f}"
        writer.writerow([row, _name(random), _stamp(random)[:10], amount, _phrase(random), random.choice(WORDS)])
    return written.getvalue()


def _markdown_table(random: Random) -> str:
    columns = random.sample(WORDS, 4)
    rows = [[random.choice(WORDS), _name(random), str(random.randrange(10**5)), _phrase(random)] for _ in range(5)]
    lines = [columns, ["-" * 12] * 4, *rows]
    return "".join("| " + " | ".join(cell.ljust(12) for cell in line) + " |\n" for line in lines) + "\n"


def _markdown(random: Random) -> str:
    points = "".join(
        f"- **{random.choice(WORDS)}**: `{_identifier(random)}` {_phrase(random)}\n" for _ in range(3)
    )
    title = _phrase(random).title()
    return f"## {title}\n\n{random.choice(SENTENCES['english'])}\n\n{points}\n"


def _server_log(random: Random) -> str:
    level = random.choice(("INFO", "WARN", "ERROR", "DEBUG"))
    where = f"{random.choice(WORDS)}.{random.choice(WORDS)}"
    return (
        f"{_stamp(random)[:-1]}.{random.randrange(1000):03}Z {level:<5} [{where}] {_phrase(random)} "
        f"{random.choice(WORDS)}_id={random.randrange(10**6)} duration={random.uniform(0, 900):.1f}ms\n"
    )


def _access_log(random: Random) -> str:
    address = ".".join(str(random.randrange(256)) for _ in range(4))
    status, size = random.choice((200, 200, 304, 404, 500)), random.randrange(100_000)
    return (
        f"{address} - - [{random.randrange(1, 29):02}/Oct/2025:{_time(random)} +0000] "
        f'"GET /{random.choice(WORDS)}/{random.randrange(10**5)} HTTP/1.1" {status} {size} "-" "Mozilla/5.0 (X11)"\n'
    )


def _traceback(random: Random) -> str:
    frames = "".join(
        f'  File "/srv/app/{random.choice(WORDS)}/{_identifier(random)}.py", line {random.randrange(900)}, in '
        f"{_identifier(random)}\n    {random.choice(WORDS)} = self.{_identifier(random)}({random.choice(WORDS)})\n"
        for _ in range(4)
    )
    return (
        f"Traceback (most recent call last):\n{frames}ValueError: {_phrase(random)}: {random.randrange(999)}\n\n"
    )


def _columns(random: Random) -> str:
    cells = [random.choice(WORDS).ljust(random.randrange(10, 60)) for _ in range(4)]
    return " " * random.randrange(40) + "".join(cells) + "\n" * random.randrange(1, 5)


def _emoji(random: Random) -> str:
    return (
        "".join(random.choices(EMOJI, k=random.randrange(1, 5)))
        + " "
        + random.choice((_phrase(random), ""))
        + "\n"
    )


def _html(random: Random) -> str:
    return (
        f'<div class="{random.choice(WORDS)}-{random.choice(WORDS)}" id="{_identifier(random)}">\n  <p>'
        f'{_phrase(random)} <a href="{_address(random)}">{random.choice(WORDS)}</a></p>\n</div>\n'
    )


def _mixed(random: Random) -> str:
    """Join a few texts of other kinds."""
    kinds = [kind for kind in KINDS if kind != "mixed"]
    return "\n".join(KINDS[random.choice(kinds)](random) for _ in range(3))


KINDS: dict[str, Callable[[Random], str]] = {
    **{f"prose {language}": partial(_prose, language) for language in SENTENCES},
    **{f"code {language}": partial(_code, language) for language in LINES},
    "capitals": _capitals,
    "json pretty": partial(_json, indent=2, ensure_ascii=False),
    "json compact": partial(_json, separators=(",", ":")),
    "json spaced": _json,
    "json schema": _schema,
    "log server": _server_log,
    "log access": _access_log,
    "traceback": _traceback,
    "base64": lambda random: base64.b64encode(random.randbytes(random.randrange(60, 900))).decode() + "\n",
    "hex": lambda random: random.randbytes(random.randrange(20, 200)).hex() + "\n",
    "uuid": lambda random: _identity(random) + "\n",
    "url": lambda random: _address(random) + "\n",
    "number": lambda random: f"{random.uniform(-1, 1) * 10 ** random.randrange(9):.{random.randrange(6)}f}, ",
    "password": lambda random: "".join(random.choices(_ASCII, k=random.randrange(8, 40))) + "\n",
    "identifier": lambda random: _identifier(random) + " ",
    "csv": _csv,
    "markdown table": _markdown_table,
    "markdown": _markdown,
    "html": _html,
    "yaml": lambda random: f"{_identifier(random)}:\n  {_identifier(random)}: {_phrase(random)}\n  - {_name(random)}\n",
    "emoji": _emoji,
    "columns": _columns,
    "mixed": _mixed,
}  # fmt: skip
