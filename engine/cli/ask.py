"""`callboard ask`: answer one question from the command line or a pipe. Only the reply is written to standard
output.
"""

from __future__ import annotations

import argparse
import os

from callboard.bus import ConfigurationError

from .. import load_registry
from .answers import Question, answer, name_of
from .command_line import PAIR
from .conversation_setup import LastSession, add_tools_and_options, last_session
from .inputs import PIPE, Pipe, as_json_options, attachment, content_of, options_of, schema_of
from .options import add_key, add_model, add_models_file, add_tag, flag, repeated, short
from .sanitize import note
from .templates import Template, load, save

TOOL_ROUNDS = 10
"""The maximum number of tool rounds, unless ``-o max_tool_rounds`` sets it."""

KEEPS_NOTHING = "CALLBOARD_NO_SAVE"
"""The environment variable that turns saving off. A conversation that is continued is saved nevertheless."""


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Send PROMPT to a model, after any text from a pipe. Only the reply goes to standard output. The "
        "trace stores the conversation, so that -c can continue it."
    )
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the question")
    add_model(parser, required=False)
    parser.add_argument("-s", "--system", metavar="TEXT", help="set the system prompt")
    repeated(
        parser,
        "-a",
        "--attach",
        dest="attachments",
        metavar="FILE",
        help="attach an image, PDF, audio or text: a file, a URL, or - for the pipe (repeatable)",
    )
    repeated(
        parser,
        "--at",
        dest="typed",
        nargs=2,
        metavar=("FILE", "TYPE"),
        help="attach a file with an explicit media type, such as image/heic",
    )
    add_tools_and_options(
        parser,
        tools="let the model call tools: FILE.py, FILE.py:function, a module, a plugin, or an MCP server as a "
        "URL or 'mcp:command'",
        options="set an option, such as temperature=0.2 or temperature 0.2, or anthropic.top_k 40 for one "
        "provider",
    )
    parser.add_argument("-t", "--template", metavar="NAME", help="use this template")
    repeated(
        parser, "-p", "--param", dest="parameters", nargs=2, metavar=PAIR, help="set a parameter of the template"
    )
    parser.add_argument("--save", metavar="NAME", help="save this command as a template, without a call")

    shape = parser.add_mutually_exclusive_group()
    shape.add_argument(
        "--schema",
        metavar="SCHEMA",
        help="request JSON: a JSON Schema, its FILE.json, or 'name, age int'; in brackets for a list",
    )
    shape.add_argument(
        "-x", "--extract", action="store_const", const="first", help="print only the first code block of the reply"
    )
    shape.add_argument(
        "--extract-last", dest="extract", action="store_const", const="last", help="print only the last code block"
    )
    flag(parser, "--json", help="print the reply with its usage and cost as a JSON object")
    flag(parser, "--no-stream", help="request the whole reply instead of a stream")
    flag(parser, "-R", "--hide-reasoning", help="hide the reasoning, which a terminal shows on stderr")
    flag(parser, "-u", "--usage", help="print tokens, speed and cost to stderr")

    which = parser.add_mutually_exclusive_group()
    flag(which, "-c", "--continue", dest="goes_on", help="continue the last conversation")
    which.add_argument("--session", metavar="ID", help="continue the session with this id, or start it")
    flag(parser, "--no-save", help=f"do not store the conversation; ${KEEPS_NOTHING}=1 makes this the default")
    add_key(parser)
    add_tag(parser, "add a tag to the call")
    add_models_file(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.save is not None:
        return _save(arguments)
    if arguments.session is not None and arguments.no_save:
        raise ConfigurationError("--session continues a stored session: leave out --no-save")
    question = question_of(arguments, Pipe())
    return answer(question, load_registry(arguments.models_file))


def question_of(arguments: argparse.Namespace, pipe: Pipe) -> Question:
    """Make the question from the arguments. They take precedence over a template."""
    template = _template(arguments)
    sources = [(source, None) for source in arguments.attachments] + [tuple(each) for each in arguments.typed]
    piped = "" if any(source == PIPE for source, _ in sources) else pipe.text()  # or it is an attachment
    text = "\n\n".join(part for part in (piped, " ".join(arguments.prompt)) if part.strip())
    filled = template.filled(text, dict(arguments.parameters))
    attached = [attachment(source, media_type, pipe.read) for source, media_type in sources]
    content = content_of(filled.prompt, attached)
    last = last_session() if arguments.goes_on else LastSession("")
    options = [*template.options.items(), *map(tuple, arguments.options)]
    continued = arguments.goes_on or arguments.session is not None  # which is saved despite the variable
    saved = not arguments.no_save and (continued or not os.environ.get(KEEPS_NOTHING))
    schema = arguments.schema if arguments.schema is not None else template.schema
    return Question(
        content=content,
        model=arguments.model or template.model,
        system=arguments.system if arguments.system is not None else filled.system,
        options={"max_tool_rounds": TOOL_ROUNDS, **options_of(options)},
        tools=arguments.tools or template.tools or last.tools,
        asks_always=arguments.approve,
        schema=schema_of(schema) if isinstance(schema, str) else schema,
        extract=arguments.extract or (template.extract if arguments.schema is None else None),
        session_id=last.session_id or arguments.session,
        must_exist=arguments.goes_on,
        saved=saved,
        streamed=not arguments.no_stream,
        shows_thoughts=not arguments.hide_reasoning,
        shows_usage=arguments.usage,
        as_json=arguments.json,
        key=arguments.key,
        tags=dict(arguments.tag) if arguments.tag else None,
        name=name_of(text or filled.prompt) if saved else None,
    )


def _template(arguments: argparse.Namespace) -> Template:
    """The named template, or an empty one."""
    if arguments.template is None:
        if arguments.parameters:
            raise ConfigurationError("-p sets a parameter of a template: name the template with -t")
        return Template()
    return load(arguments.template)


def _save(arguments: argparse.Namespace) -> int:
    """Save the command line's settings as a template."""
    template = Template(
        name=arguments.save,
        system=arguments.system,
        prompt=" ".join(arguments.prompt) or None,
        model=arguments.model,
        options=as_json_options(options_of(map(tuple, arguments.options))),
        schema=arguments.schema,
        tools=tuple(arguments.tools),
        extract=arguments.extract,
    )
    note(f"saved as {short(save(template))}; to use it: callboard ask -t {template.name}")
    return 0
