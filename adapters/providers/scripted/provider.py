"""The descriptor of scripts."""

from callboard.adapters.provider import Provider

PROVIDER = Provider(name="scripted", adapter="adapter:ScriptedAdapter", kinds=("chat", "embedding"))
