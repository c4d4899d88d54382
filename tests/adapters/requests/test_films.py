"""A document of unknown type whose address is plainly a film's goes to no model that takes no films."""

from __future__ import annotations

import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.requests.media import film_type
from callboard.bus.errors import CapabilityError
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock
from callboard.bus.values.messages import Message

from ...support.fake_http import ask

FILMS = [
    ("https://www.youtube.com/watch?v=x", "video/mp4"), ("https://youtu.be/x", "video/mp4"),
    ("https://m.youtube.com/watch?v=x", "video/mp4"), ("https://x.test/a.MOV?size=1", "video/quicktime"),
    ("gs://x/a.avi", "video/avi"),
]  # fmt: skip
OTHERS = ["https://x.test/a.pdf", "https://x.test/report", "https://notyoutube.com/a", "https://[x/a.mp4", "mp4"]


@pytest.mark.parametrize(("url", "media_type"), FILMS)
def test_an_address_of_a_film_has_a_films_type(url: str, media_type: str) -> None:
    assert film_type(DocumentBlock(url=url)) == media_type


@pytest.mark.parametrize("url", OTHERS)
def test_any_other_address_hides_its_type(url: str) -> None:
    assert film_type(DocumentBlock(url=url)) is None


def test_only_a_document_without_a_type_is_taken_for_a_film() -> None:
    url = "https://x.test/a.mp4"
    assert film_type(DocumentBlock(url=url, media_type="application/pdf")) is None
    assert film_type(AudioBlock(url=url)) is film_type(ImageBlock(url=url)) is None


@pytest.mark.parametrize("url", [url for url, _ in FILMS[:4]])
@pytest.mark.parametrize("kind", [AnthropicAdapter, OpenAIAdapter])
def test_a_model_without_films_refuses_one_now_and_leaves_out_one_of_long_ago(
    kind: type[HttpAdapter], url: str
) -> None:
    adapter = kind(AdapterConfig())
    model = f"{adapter.name}:some-model"
    film = Message.user([DocumentBlock(url=url)])
    can = adapter.get_capabilities(model)
    with pytest.raises(CapabilityError, match="takes no video/"):
        adapter.write_request(ask(film, model=model, capabilities=can), stream=False)
    later = [film, Message.assistant("A dog."), Message.user("Thanks.")]
    call = adapter.write_request(ask(*later, model=model, capabilities=can), stream=False)
    assert [loss.block for loss in call.losses] == list(film.content)
    assert url.encode() not in call.body


@pytest.mark.parametrize("url", [url for url, _ in FILMS])
def test_gemini_takes_them_all(url: str) -> None:
    adapter = GeminiAdapter(AdapterConfig())
    model = f"{adapter.name}:gemini-3-flash"
    asked = ask(Message.user([DocumentBlock(url=url)]), model=model, capabilities=adapter.get_capabilities(model))
    call = adapter.write_request(asked, stream=False)
    assert not call.losses
    assert url.encode() in call.body
