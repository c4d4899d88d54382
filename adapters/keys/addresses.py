"""The address that the environment gives a provider, in the variable that the vendor's own library reads as well.

It goes behind what models.yaml says of an adapter, and before the provider's own address.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.bus.errors import ConfigurationError

from ..provider import provider_named, providers
from ..transport.key_owner import check_key_goes_home


def address_variable(kind: str, key_variable: str | None, environ: Mapping[str, str]) -> str | None:
    """The variable that gives an adapter its address, such as ``ANTHROPIC_BASE_URL``.

    Args:
        kind: The adapter's type.
        key_variable: The variable that holds the adapter's key; None for a key from elsewhere, or none at all.
        environ: The variables.

    Returns:
        None if nothing is set, or the key may be of another vendor than the one whose variable it is.
    """
    provider = provider_named(kind)
    variable = None if provider is None else provider.base_url_variable
    if provider is None or variable is None or not environ.get(variable):
        return None
    homes = (each.home for each in providers() if each.base_url_variable == variable and each.home)
    try:
        check_key_goes_home(kind, key_variable, f"https://{next(homes)}", of_many=provider.home is None)
    except ConfigurationError:
        return None
    return variable
