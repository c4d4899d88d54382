"""Requests as TGI's text endpoint gets them: one prompt, and parameters that it accepts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.providers.tgi.request import TEMPLATES, PromptTemplate, choose_template, write_request
from callboard.bus.errors import ConfigurationError, InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ImageBlock, ProviderRaw, TextBlock, ThinkingBlock
from callboard.bus.values.messages import Message

from ...support.fake_http import pieces
from ...support.wires import WIRES
from ...support.wires.reading import read_pieces
from ...support.wires.tgi import ask, body, details, end, token

Plain = dict[str, Any]
TALK = (Message.user("Hello"), Message.assistant("Hi."), Message.user([TextBlock("And"), TextBlock("now?")]))


PLAIN = TEMPLATES["plain"]


def wired(
    request: CanonicalRequest, template: PromptTemplate = PLAIN, *, max_stop: int = 4, stream: bool = False
) -> WireCall:
    return write_request(request, provider="tgi", template=template, max_stop=max_stop, stream=stream)


def written(request: CanonicalRequest, template: PromptTemplate = PLAIN, **options: Any) -> Plain:
    body: Plain = msgspec.json.decode(wired(request, template, **options).body)
    return body


def parameters(request: CanonicalRequest, **options: Any) -> Plain:
    found: Plain = written(request, **options)["parameters"]
    return found


def codes(request: CanonicalRequest, **options: Any) -> list[str]:
    return [warning.code for warning in wired(request, **options).warnings]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "Be brief.\n\nUser: Hello\nAssistant: Hi.\nUser: And\n\nnow?\nAssistant:"),
        (
            "chatml",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
            "<|im_start|>assistant\nHi.<|im_end|>\n<|im_start|>user\nAnd\n\nnow?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHi.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nAnd\n\nnow?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
)
def test_prompts_by_template(name: str, expected: str) -> None:
    """As models were trained to read them."""
    assert written(ask(*TALK, system_prompt="Be brief."), TEMPLATES[name])["inputs"] == expected


def test_a_template_of_ones_own() -> None:
    """Single fields over a base; what was said is never taken for a pattern."""
    own = choose_template({"base": "plain", "user": "Q: {text}\n", "reply": "A:", "stop": ["\nQ:"]})
    request = ask(Message.user("{text} {x}"), stop_sequences=("END",))
    assert written(request, own)["inputs"] == "Q: {text} {x}\nA:"
    assert written(request, own)["parameters"]["stop"] == ["\nQ:", "END"]


@pytest.mark.parametrize("option", ["mistral", 3, None, {"base": "x"}, {"usr": "x"}, {"stop": "x"}], ids=str)
def test_templates_that_are_none(option: Json) -> None:
    """Named at once."""
    with pytest.raises(ConfigurationError, match=r"options\.template"):
        choose_template(option)


def test_only_text_is_sent() -> None:
    """Older images, and others' reasoning, are reported as lost."""
    image = ImageBlock(url="https://example.com/a.png")
    thought = ThinkingBlock("Hm.", provider_raw=ProviderRaw("ollama", {}))
    past = ask(Message.user([image, TextBlock("?")]), Message.assistant([thought, TextBlock("So.")]), TALK[0])
    assert codes(past) == ["content_dropped"] * 2
    assert written(past)["inputs"] == "User: ?\nAssistant: So.\nUser: Hello\nAssistant:"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"temperature": 0.0}, {"do_sample": False}),  # zero is refused
        ({"temperature": 0.7}, {"do_sample": True, "temperature": 0.7}),
        ({"top_p": 0.9}, {"top_p": 0.9}),
        ({"top_p": 1.0}, {}),  # means nothing, and is refused
        ({"seed": 7, "frequency_penalty": 0.5}, {"seed": 7, "frequency_penalty": 0.5}),
        ({"reasoning_effort": "none"}, {}),
    ],
)
def test_sampling_as_the_server_accepts_it(changes: Plain, expected: JsonObject) -> None:
    """Without a warning, for nothing else is meant."""
    request = ask(**changes)
    sent = parameters(request)
    for name in ("max_new_tokens", "details", "return_full_text", "stop"):
        del sent[name]
    assert sent == expected
    assert codes(request) == []


@pytest.mark.parametrize(
    "changes",
    [{"presence_penalty": 1.0}, {"verbosity": "low"}, {"user": "u"}, {"reasoning_effort": "high"}],
    ids=str,
)
def test_what_the_server_doesn_t_know_is_left_out_with_a_warning(changes: Plain) -> None:
    """It only tunes the reply."""
    assert codes(ask(**changes)) == ["parameter_dropped"]
    assert parameters(ask(**changes)) == parameters(ask())


def test_the_templates_stops_come_first() -> None:
    """Without them the model would go on for the user; what is beyond the server's limit is left out."""
    request = ask(stop_sequences=("A", "B", "", "C", "D"))
    assert parameters(request)["stop"] == ["\nUser:", "A", "B", "C"]
    assert codes(request) == ["parameter_dropped"]
    assert codes(request, max_stop=5) == []


def test_details_are_not_the_hosts_to_leave_out() -> None:
    """Without them the reply has no usage."""
    with pytest.raises(InvalidRequestError, match="'details'"):
        wired(ask(provider_options={"tgi": {"details": False}}))


@settings(max_examples=60)
@given(
    st.text(min_size=1, max_size=12).filter(lambda text: text.strip() and "User:" not in text),
    st.integers(0, 2000),
)
def test_a_reply_survives_the_round_trip(text: str, cut: int) -> None:
    """What the model said stands in the next prompt as it was, but for the space before it."""
    data = body(*map(token, text), end(text, details()))
    said = read_pieces(WIRES[5], pieces(data, [1 + cut % (len(data) - 1)])).reply.text
    sent = written(ask(Message.user("Hi"), Message.assistant(said), Message.user("And?")))["inputs"]
    assert sent == f"User: Hi\nAssistant: {text.lstrip()}\nUser: And?\nAssistant:"
