"""What is sent before a body: where a URL leads, as httpx has it, and no header that could be another one."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.adapters.transport.http1.protocol import Origin, target_of, write_head
from callboard.bus.errors import InvalidRequestError

URL = "https://api.test/v1/talk"


def head(method: str = "POST", url: str = URL, length: int = 2, **headers: str) -> list[str]:
    """The lines of a head."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = write_head(method, target_of(url), named, length).decode("ascii").split("\r\n")
    assert lines[-2:] == ["", ""]
    return lines[:-2]


def test_a_head_says_what_is_asked_and_how_long_the_body_is() -> None:
    """The headers follow as they are given."""
    assert head(authorization="Bearer x", X_a="1\t2") == [
        "POST /v1/talk HTTP/1.1",
        "Host: api.test",
        "Content-Length: 2",
        "authorization: Bearer x",
        "X-a: 1\t2",
        "Accept-Encoding: gzip, deflate",
    ]


def test_a_host_and_codings_of_the_caller_s_stand_in_place_of_ours() -> None:
    """Each is there once."""
    assert head(HOST="other.test", Accept_Encoding="identity", content_length="2") == [
        "POST /v1/talk HTTP/1.1",
        "Host: other.test",
        "Content-Length: 2",
        "Accept-Encoding: identity",
    ]


SECRET = "sk-secret"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-a": f"{SECRET}\r\nx-b: 1"},
        {"x-a": f"{SECRET}\nx-b: 1"},
        {"x-a": f"{SECRET}\r"},
        {"x-a": f"{SECRET}\0"},
        {"x-a": f"{SECRET}\x85"},
        {"x-a": f"{SECRET}é"},
        {f"x-{SECRET}\r\nx-b": "1"},
        {f"x-{SECRET}: 1\r\nx-b": "1"},
        {f"x {SECRET}": "1"},
        {f"x:{SECRET}": "1"},
        {f"é{SECRET}": "1"},
        {"": SECRET},
        {"Content-Length": "3"},
        {"content-length": "2, 2"},
        {"Transfer-Encoding": "chunked"},
        {"transfer-encoding": "identity"},
    ],
)
def test_a_header_that_could_be_another_or_a_body_of_another_length_is_refused(headers: dict[str, str]) -> None:
    """Its value is never quoted."""
    with pytest.raises(InvalidRequestError) as raised:
        write_head("POST", target_of(URL), headers, 2)
    assert not any(value in str(raised.value) for value in headers.values() if SECRET in value)


@pytest.mark.parametrize("method", ["", "GET /", "GE T", "GET\r\n", "É"])
def test_a_method_that_is_none_is_refused(method: str) -> None:
    with pytest.raises(InvalidRequestError):
        write_head(method, target_of(URL), {}, 0)


@given(st.dictionaries(st.text(max_size=6), st.text(max_size=12), max_size=3))
def test_no_headers_give_more_lines_than_there_are(headers: dict[str, str]) -> None:
    """Whatever they hold: as many as were given, or none."""
    try:
        written = write_head("POST", target_of(URL), headers, 2)
    except InvalidRequestError:
        return
    text = written.decode("ascii")
    assert text.count("\r\n") == text.count("\r") == text.count("\n")
    assert text.index("\r\n\r\n") == len(text) - 4
    assert text.count("\r\n") <= 5 + len(headers)


@pytest.mark.parametrize(
    ("url", "origin", "authority", "path"),
    [
        ("http://a.test", Origin(False, "a.test", 80), "a.test", "/"),
        ("HTTPS://A.Test:443/X?", Origin(True, "a.test", 443), "a.test", "/X?"),
        ("https://a.test:80/%7Ex/ü?q=ü#part", Origin(True, "a.test", 80), "a.test:80", "/%7Ex/%C3%BC?q=%C3%BC"),
        ("http://user:pass@a.test:8080/x", Origin(False, "a.test", 8080), "a.test:8080", "/x"),
        ("http://[::1]:8080/x", Origin(False, "::1", 8080), "[::1]:8080", "/x"),
        ("https://käse.test/", Origin(True, "xn--kse-qla.test", 443), "xn--kse-qla.test", "/"),
        ("http://my_server/a b", Origin(False, "my_server", 80), "my_server", "/a%20b"),
    ],
)
def test_a_url_leads_to_a_server_and_a_path(url: str, origin: Origin, authority: str, path: str) -> None:
    target = target_of(url)
    assert (target.origin, target.authority, target.path) == (origin, authority, path)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://x.test", "no address", "http://", "http:///x", "//x.test/", "x.test", "http://x:port/"),
        *("http://\udcff/", "http://x.test/\udcff", "http://x y/", "http://x\r\ny/", "http://x.test/\r\nHost: y"),
        *("http://x.test/\0", "http://1.2.3.999/", "http://[::zz]/", "http://[::1/", "http://x.test:99999/"),
        "http://x.test/" + "a" * 70_000,
    ],
)
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
    """A signature is made over the same characters. Only steps of dots stay as they are given."""
    if any(step in (".", "..") for step in path.split("/")):
        return
    url = f"https://{place}/{path}" + ("" if query is None else f"?{query}")
    theirs, ours = httpx.URL(url), target_of(url)
    assert ours.path == theirs.raw_path.decode("ascii")
    assert ours.authority == theirs.netloc.decode("ascii")
    assert ours.origin.host == theirs.raw_host.decode("ascii")
