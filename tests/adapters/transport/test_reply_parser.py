"""The bytes of replies in each form and in pieces, and the bytes of a request before its body."""

from __future__ import annotations

from collections.abc import Iterable

import h11
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.adapters.transport.connection_pool import HeadWriter, Origin, target_of, write_head
from callboard.adapters.transport.http1_connection import MOST_HEAD_BYTES, ReplyParser, keep_alive_seconds
from callboard.bus.errors import InvalidRequestError

from ...support.http1_replies import BAD, FORMS, OK, Form

Read = tuple[int, dict[str, str], bytes, bool, str | None]


def read(parts: Iterable[bytes], method: str = "POST", *, ends: bool = True) -> tuple[ReplyParser, Read]:
    """Feed a parser with these parts. Returns it with status, headers, body, whether all was read, and the
    error.
    """
    parser = ReplyParser()
    parser.begin(method)
    body = []
    for part in parts:
        parser.feed(part)
        body += parser.pieces
        parser.pieces.clear()
    whole = parser.complete or (ends and parser.end())
    return parser, (parser.status, dict(parser.headers), b"".join(body), whole, parser.error)


def check(form: Form, parts: Iterable[bytes]) -> None:
    parser, (status, headers, body, whole, error) = read(parts, form.method)
    assert (status, body, whole, error) == (form.status, form.body, True, None)
    assert headers.items() >= form.headers.items()
    assert parser.keeps_open is form.free


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read_in_every_division(name: str) -> None:
    """The reply is read as a whole, byte by byte, and divided at every place. Data after the reply is noticed and
    not read.
    """
    form = FORMS[name]
    check(form, [form.sent])
    check(form, [form.sent[at : at + 1] for at in range(len(form.sent))])
    for at in range(1, len(form.sent)):
        check(form, [form.sent[:at], form.sent[at:]])


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.free and not form.ends])
def test_one_reply_follows_another(name: str) -> None:
    """No state of the first reply affects the second, in any form."""
    parser = ReplyParser()
    for form in (FORMS[name], *(each for each in FORMS.values() if each.free), FORMS[name]):
        parser.begin(form.method)
        parser.feed(form.sent)
        assert (parser.status, b"".join(parser.pieces), parser.complete) == (form.status, form.body, True)
        assert parser.headers.items() >= form.headers.items()
        assert parser.keeps_open
        parser.pieces.clear()


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if "behind" not in name])
def test_an_incomplete_reply_is_never_complete(name: str) -> None:
    """The break can be at any byte. Only a body that ends with the connection can't be distinguished from its
    beginning.
    """
    form = FORMS[name]
    head = form.sent.rfind(b"\r\n\r\n") if form.ends else len(form.sent) - 1
    for at in range(min(head + 4, len(form.sent)) if form.ends else len(form.sent)):
        parser, (_, _, body, whole, error) = read([form.sent[:at]], form.method)
        assert not whole, form.sent[:at]
        assert error is None
        assert form.body.startswith(body)
        assert not parser.keeps_open


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_reply_is_refused(name: str) -> None:
    """Every division of the bytes is refused. The received part never counts as complete, and later data changes
    nothing. A switch to another protocol, which no client requested, is named.
    """
    sent = BAD[name]
    for parts in (
        [sent],
        [sent[at : at + 1] for at in range(len(sent))],
        [sent, OK + b"Content-Length: 0\r\n\r\n"],
    ):
        parser, (_, _, _, whole, error) = read(parts)
        assert not whole
        assert error
        assert "other protocols" not in name or "status 101, which was not requested" in error
        assert not parser.keeps_open


def test_the_size_of_a_head_is_limited() -> None:
    """The limits apply to headers, earlier hints, trailers and chunk extensions, in one piece or many."""
    line = b"X-A: " + b"a" * 1000 + b"\r\n"
    many = MOST_HEAD_BYTES // len(line) + 1
    chunked = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    floods = {
        "headers": [OK, *[line] * many],
        "one header": [OK + b"X-A: ", *[b"a" * 1000] * (many + 2)],
        "hints": [b"HTTP/1.1 103 Early Hints\r\n" + line + b"\r\n"] * many,
        "trailers": [chunked + b"0\r\n", *[line] * many],
        "an extension": [chunked + b"5;", *[b"a" * 1000] * (many + 2)],
        "a reason": [b"HTTP/1.1 200 ", *[b"a" * 1000] * (many + 2)],
        "at once": [OK + line * many + b"Content-Length: 0\r\n\r\n"],
    }
    for name, parts in floods.items():
        _, (_, _, _, whole, error) = read(parts)
        assert not whole, name
        assert error is not None, name
        assert "bytes of headers" in error, name
    _, (status, _, _, whole, error) = read([OK, *[line] * (many - 2), b"Content-Length: 0\r\n\r\n"])
    assert (status, whole, error) == (200, True, None)


def test_a_body_has_no_limit() -> None:
    """Only data that carries no content is limited."""
    chunk = [b"3e8\r\n" + b"a" * 1000, b"\r\n"]
    parts = [OK + b"Transfer-Encoding: chunked\r\n\r\n", *chunk * 500, b"0\r\n\r\n"]
    _, (_, _, body, whole, error) = read(parts)
    assert (len(body), whole, error) == (500_000, True, None)


@given(st.sampled_from(sorted(FORMS)), st.data())
def test_any_bytes_are_read_as_h11_reads_them_or_refused(name: str, data: st.DataObject) -> None:
    """Some bytes of a form are changed. If both parsers accept the reply, they agree. No other error is raised."""
    form = FORMS[name]
    sent = bytearray(form.sent)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sent) - 1))
        with_what = data.draw(
            st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b":", b"\0", b"0", b"9", b"a", b","])
        )
        sent[at : at + data.draw(st.integers(0, 2))] = with_what
        if not sent:
            return
    _, (status, headers, body, whole, error) = read([bytes(sent)], form.method)
    theirs = read_by_h11(bytes(sent), form.method)
    if theirs is not None and whole:
        assert (status, body) == (theirs[0], theirs[2])
        for each in (headers, theirs[1]):
            each.pop("transfer-encoding", None)  # h11 rewrites its value
        assert headers == theirs[1]
    if theirs is None and whole:
        assert error is None


def read_by_h11(sent: bytes, method: str) -> tuple[int, dict[str, str], bytes] | None:
    """Read a reply with h11. None if h11 refuses it."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "a"), ("Content-Length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(sent)
    connection.receive_data(b"")
    status, headers, body = 0, dict[str, str](), b""
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            match event:
                case h11.Response():
                    status = event.status_code
                    for name, value in event.headers:
                        key, text = name.decode(), value.decode("latin-1")
                        headers[key] = f"{headers[key]}, {text}" if key in headers else text
                case h11.Data():
                    body += event.data
                case h11.InformationalResponse():
                    if event.status_code == 101:
                        return None
                case _:
                    return None
    except h11.RemoteProtocolError:
        return None
    return (status, headers, body) if isinstance(event, h11.EndOfMessage) else None


def test_the_time_that_a_server_keeps_a_connection_is_read() -> None:
    for header, seconds in (
        ("timeout=5", 5), ("timeout=5, max=100", 5), ("max=100, timeout = 75", 75), ('Timeout="3"', 3),
        ("max=5", None), ("", None), ("timeout=", None), ("timeout=-1", None), ("xtimeout=5", None),
    ):  # fmt: skip
        assert keep_alive_seconds(header) == seconds, header


# -- The data before a body: the target of a URL as in httpx, and only valid headers.


URL = "https://api.test/v1/talk"


def head(method: str = "POST", url: str = URL, length: int = 2, **headers: str) -> list[str]:
    """The lines of a head."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = write_head(method, target_of(url), named, length).decode("ascii").split("\r\n")
    assert lines[-2:] == ["", ""]
    return lines[:-2]


def test_a_head_has_the_request_and_the_length_of_the_body() -> None:
    """The headers follow in the given order. The caller's host and codings replace the default."""
    assert head(authorization="Bearer x", X_a="1\t2") == [
        "POST /v1/talk HTTP/1.1", "Host: api.test", "Content-Length: 2", "authorization: Bearer x", "X-a: 1\t2",
        "Accept-Encoding: gzip, deflate",
    ]  # fmt: skip
    assert head(HOST="other.test", Accept_Encoding="identity", content_length="2") == [
        "POST /v1/talk HTTP/1.1", "Host: other.test", "Content-Length: 2", "Accept-Encoding: identity",
    ]  # fmt: skip
    for method in ("", "GET /", "GE T", "GET\r\n", "É"):
        with pytest.raises(InvalidRequestError):
            write_head(method, target_of(URL), {}, 0)


def test_a_kept_head_is_the_head_of_these_headers_and_this_length() -> None:
    """A change of the headers in place is noticed. The headers may state the length."""
    writer, named = HeadWriter(), {"x-a": "1"}
    for length, value in [(2, "1"), (10, "1"), (10, "2"), (3, "Content-Length: 3"), (4, "Content-Length: 3")]:
        named["x-a"] = value
        for headers in (named, {**named, "content-length": str(length)}):
            wanted = write_head("POST", target_of(URL), headers, length)
            assert writer.write("POST", target_of(URL), headers, length) == wanted
    with pytest.raises(InvalidRequestError):
        writer.write("POST", target_of(URL), {**named, "content-length": "4"}, 5)


SECRET = "sk-secret"


@pytest.mark.parametrize("headers", [
    {"x-a": f"{SECRET}\r\nx-b: 1"}, {"x-a": f"{SECRET}\nx-b: 1"}, {"x-a": f"{SECRET}\r"}, {"x-a": f"{SECRET}\0"},
    {"x-a": f"{SECRET}\x85"}, {"x-a": f"{SECRET}é"}, {f"x-{SECRET}\r\nx-b": "1"}, {f"x-{SECRET}: 1\r\nx-b": "1"},
    {f"x {SECRET}": "1"}, {f"x:{SECRET}": "1"}, {f"é{SECRET}": "1"}, {"": SECRET}, {"Content-Length": "3"},
    {"content-length": "2, 2"}, {"Transfer-Encoding": "chunked"}, {"transfer-encoding": "identity"},
])  # fmt: skip
def test_an_ambiguous_header_or_a_wrong_length_is_refused(headers: dict[str, str]) -> None:
    """The error never quotes its value."""
    with pytest.raises(InvalidRequestError) as raised:
        write_head("POST", target_of(URL), headers, 2)
    assert not any(value in str(raised.value) for value in headers.values() if SECRET in value)


@given(st.dictionaries(st.text(max_size=6), st.text(max_size=12), max_size=3))
def test_no_headers_give_more_lines_than_there_are(headers: dict[str, str]) -> None:
    """For any headers, the number of lines is that of the headers, or the request is refused."""
    try:
        written = write_head("POST", target_of(URL), headers, 2)
    except InvalidRequestError:
        return
    text = written.decode("ascii")
    assert text.count("\r\n") == text.count("\r") == text.count("\n")
    assert text.index("\r\n\r\n") == len(text) - 4
    assert text.count("\r\n") <= 5 + len(headers)


@pytest.mark.parametrize(("url", "origin", "authority", "path"), [
    ("http://a.test", Origin(False, "a.test", 80), "a.test", "/"),
    ("HTTPS://A.Test:443/X?", Origin(True, "a.test", 443), "a.test", "/X?"),
    ("https://a.test:80/%7Ex/ü?q=ü#part", Origin(True, "a.test", 80), "a.test:80", "/%7Ex/%C3%BC?q=%C3%BC"),
    ("http://user:pass@a.test:8080/x", Origin(False, "a.test", 8080), "a.test:8080", "/x"),
    ("http://[::1]:8080/x", Origin(False, "::1", 8080), "[::1]:8080", "/x"),
    ("https://käse.test/", Origin(True, "xn--kse-qla.test", 443), "xn--kse-qla.test", "/"),
    ("http://my_server/a b", Origin(False, "my_server", 80), "my_server", "/a%20b"),
])  # fmt: skip
def test_a_url_leads_to_a_server_and_a_path(url: str, origin: Origin, authority: str, path: str) -> None:
    target = target_of(url)
    assert (target.origin, target.authority, target.path) == (origin, authority, path)


@pytest.mark.parametrize("url", [
    *("ftp://x.test", "no address", "http://", "http:///x", "//x.test/", "x.test", "http://x:port/"),
    *("http://\udcff/", "http://x.test/\udcff", "http://x y/", "http://x\r\ny/", "http://x.test/\r\nHost: y"),
    *("http://x.test/\0", "http://1.2.3.999/", "http://[::zz]/", "http://[::1/", "http://x.test:99999/"),
    "http://x.test/" + "a" * 70_000,
])  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        target_of(url)
    assert raised.value.__context__ is None


@given(
    st.sampled_from(["a.test", "A.Test:8080", "127.0.0.1", "[::1]:1", "käse.test:443", "a_b-c.test:80"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="?#"), max_size=20),
    st.none() | st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="#"), max_size=20),
)
@example("a.test", "%41%zz%/{}`\"<>\\^|~'", "a=%41%zz&b={}`\"<>\\^|~'")
def test_paths_and_hosts_are_written_as_httpx_writes_them(place: str, path: str, query: str | None) -> None:
    """A signature uses the same characters. Only steps of dots stay unchanged."""
    if any(step in (".", "..") for step in path.split("/")):
        return
    url = f"https://{place}/{path}" + ("" if query is None else f"?{query}")
    theirs, ours = httpx.URL(url), target_of(url)
    assert ours.path == theirs.raw_path.decode("ascii")
    assert ours.authority == theirs.netloc.decode("ascii")
    assert ours.origin.host == theirs.raw_host.decode("ascii")
