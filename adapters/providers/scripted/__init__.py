"""A provider with scripted replies, for tests and demos of hosts."""

from callboard.bus._lazy_names import face

from ...provider import Provider

PROVIDER = Provider(name="scripted", adapter="adapter:ScriptedAdapter", kinds=("chat", "embedding"))

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".adapter": "ScriptedAdapter ScriptedCall ScriptedFailure ScriptedReply",
    },
)
