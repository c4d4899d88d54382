"""All keys of one adapter, by name, and the one that a call uses."""

from __future__ import annotations

from ..contract import AdapterConfig
from ..transport.key_masking import hide_in_logs, secrets, with_secret
from .key import Key


class Keyring:
    """The keys of an adapter. `secrets` holds what must not be seen: it grows as keys come.

    Args:
        adapter: The adapter's name.
        config: The adapter's configuration.
    """

    def __init__(self, adapter: str, config: AdapterConfig) -> None:
        self.secrets = secrets(config)
        """The values that must not be seen."""
        self.own = Key(adapter, None, config.api_key, self._learn)
        """The key of calls that name none."""
        hide_in_logs(self, self.secrets)

    def _learn(self, value: str) -> None:
        self.secrets = with_secret(self.secrets, value)
        hide_in_logs(self, self.secrets)
