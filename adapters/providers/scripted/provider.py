"""The descriptor of scripts."""

from adapters.provider import Provider

PROVIDER = Provider(name="scripted", adapter="adapter:ScriptedAdapter", kinds=("chat", "embedding"))
