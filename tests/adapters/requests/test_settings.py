"""Portable settings: written where a protocol has them, refused with a warning where it hasn't."""

from __future__ import annotations

from callboard.adapters.requests.settings import PORTABLE, put, write_settings
from callboard.bus.values.base import JsonObject

from ...support.fake_http import request

ALL: dict[str, object] = {
    "temperature": 0.0,
    "top_p": 0.5,
    "frequency_penalty": 0.0,
    "presence_penalty": -1.0,
    "seed": 0,
    "user": "u_1",
    "verbosity": "low",
    "background": True,
}


def test_every_portable_setting_is_a_field_of_a_request_that_is_empty_by_default() -> None:
    asked = request()
    assert {name: getattr(asked, name) for name in PORTABLE} == dict.fromkeys(PORTABLE)
    assert set(ALL) == set(PORTABLE)


def test_settings_stand_where_the_protocol_has_them_and_zero_is_a_value() -> None:
    body: JsonObject = {"text": {"format": {"type": "json_object"}}}
    paths = {name: name for name in PORTABLE} | {"verbosity": "text.verbosity", "user": "metadata.user_id"}
    assert write_settings(body, request(**ALL), paths, "toy") == []
    assert body == {
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "metadata": {"user_id": "u_1"},
        "temperature": 0.0,
        "top_p": 0.5,
        "frequency_penalty": 0.0,
        "presence_penalty": -1.0,
        "seed": 0,
        "background": True,
    }


def test_what_the_protocol_or_the_model_has_not_is_left_out_with_a_warning_each() -> None:
    body: JsonObject = {}
    warnings = write_settings(
        body,
        request(seed=7, temperature=0.5, user="u_1"),
        {"temperature": "temperature", "user": "user"},
        "toy",
        refused={"temperature": "it reasons"},
    )
    assert body == {"user": "u_1"}
    assert [(warning.code, warning.message) for warning in warnings] == [
        ("parameter_dropped", "temperature was not sent to toy: it reasons"),
        ("parameter_dropped", "seed was not sent to toy: the protocol has no such parameter"),
    ]


def test_a_verbosity_that_nobody_knows_is_left_out_with_a_warning() -> None:
    body: JsonObject = {}
    (warning,) = write_settings(body, request(verbosity="chatty"), {"verbosity": "verbosity"}, "toy")
    assert body == {}
    assert warning.code == "parameter_dropped"
    assert "low, medium, high" in warning.message


def test_only_the_settings_asked_for_are_looked_at() -> None:
    body: JsonObject = {}
    assert write_settings(body, request(**ALL), {"seed": "seed"}, "toy", names=("seed",)) == []
    assert body == {"seed": 0}


def test_putting_at_a_path_makes_the_objects_on_the_way() -> None:
    body: JsonObject = {"a": {"b": 1}}
    put(body, "a.c.d", 2)
    put(body, "e", 3)
    assert body == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
