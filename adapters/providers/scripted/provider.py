"""Scripts among the providers."""

from adapters.provider import Provider

PROVIDER = Provider(name="scripted", adapter="adapter:ScriptedAdapter", kinds=("chat", "embedding"))
