"""A fitted history as one prompt. The text endpoint knows no messages, so the template is ours.

The template ``plain`` suits base models and any other model. Each message begins with its speaker, and the reply
is stopped where the model would go on to speak for the user. Chat models want the template that they were trained
with. ``chatml`` and ``llama3`` are the two most used, and a host can spell out another one.

A text can forge a turn by containing the template's own marks. Text that isn't trusted therefore belongs to the
messages API.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.requests.history import FittedHistory
from callboard.adapters.requests.text import join_text
from callboard.bus.errors import ConfigurationError
from callboard.bus.values.json import Json
from callboard.bus.values.messages import Role


class PromptTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The template of a prompt. ``{text}`` stands for the text of a message."""

    start: str = ""
    """The text before everything."""
    system: str = "{text}\n\n"
    user: str = "User: {text}\n"
    assistant: str = "Assistant: {text}\n"
    reply: str = "Assistant:"
    """The text after everything, from which the model goes on."""
    stop: tuple[str, ...] = ("\nUser:",)
    """The texts that end the reply. They count among the server's stop sequences."""
    strip: bool = True
    """Whether white space before the reply is left out."""


TEMPLATES: Mapping[str, PromptTemplate] = {
    "plain": PromptTemplate(),
    "chatml": PromptTemplate(
        system="<|im_start|>system\n{text}<|im_end|>\n",
        user="<|im_start|>user\n{text}<|im_end|>\n",
        assistant="<|im_start|>assistant\n{text}<|im_end|>\n",
        reply="<|im_start|>assistant\n",
        stop=("<|im_end|>",),
        strip=False,
    ),
    "llama3": PromptTemplate(
        start="<|begin_of_text|>",
        system="<|start_header_id|>system<|end_header_id|>\n\n{text}<|eot_id|>",
        user="<|start_header_id|>user<|end_header_id|>\n\n{text}<|eot_id|>",
        assistant="<|start_header_id|>assistant<|end_header_id|>\n\n{text}<|eot_id|>",
        reply="<|start_header_id|>assistant<|end_header_id|>\n\n",
        stop=("<|eot_id|>",),
        strip=False,
    ),
}
"""By the name that ``options: {template: NAME}`` gives."""


def choose_template(option: Json) -> PromptTemplate:
    """The template of a configuration: a name, or an object of fields that differ from those of its ``base``.

    Raises:
        ConfigurationError: There is no such template.
    """
    changes: dict[str, Json] = dict(option) if isinstance(option, dict) else {}
    name = changes.pop("base", "plain") if isinstance(option, dict) else option
    if not isinstance(name, str) or name not in TEMPLATES:
        known = ", ".join(sorted(TEMPLATES))
        raise ConfigurationError(f"options.template: {name!r} is none of {known}, nor an object with such a base")
    try:
        return msgspec.convert({**msgspec.to_builtins(TEMPLATES[name]), **changes}, PromptTemplate)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"options.template: {error}") from error


def write_prompt(history: FittedHistory, template: PromptTemplate) -> str:
    """The whole prompt. The history has text only: tools are emulated before, and images fitted away."""
    parts = [template.start]
    if history.system is not None:
        parts.append(_fill(template.system, history.system))
    for message in history.messages:
        text = join_text(message.content)
        if text:
            parts.append(_fill(template.assistant if message.role is Role.ASSISTANT else template.user, text))
    return "".join(parts) + template.reply


def _fill(pattern: str, text: str) -> str:
    return pattern.replace("{text}", text)
