"""What is known of a provider outside of its folder, in one place: its descriptor, and how descriptors are found.

Each package in `adapters.providers` has a `PROVIDER`. Every list of providers is derived
from these: the types of models.yaml, the names that `adapters` exports, the keys in the environment, names in
price files and in telemetry, whose a key is, estimates. So a provider is added by adding its folder.

A descriptor names code by its place in the folder, ``module:name``, and the code is imported when it is needed: a
program that talks to one provider imports one. The folder's `__init__` imports nothing for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Literal, TypeAlias, cast

import msgspec

from callboard.bus.files import package_data
from callboard.bus.values.base import Json

Kind: TypeAlias = Literal["chat", "embedding", "image", "video"]
"""What a model is for."""

_VendorOf: TypeAlias = Callable[[Mapping[str, Json], str | None], str | None]
_FOLDERS = f"{__package__}.providers"


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """How a vendor of models is called by others."""

    name: str
    """The vendor's name in our price tables, before the colon of its models' names."""
    telemetry: str | None = None
    """The name in OpenTelemetry's conventions for generative AI. None: the provider's own name."""
    genai_prices: str | None = None
    """The name in the published prices of genai-prices. None: `name`."""
    litellm: tuple[str, ...] = ()
    """The names in LiteLLM's list of models. None of them need be there if it is `name`."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter with one model that is there without a configuration, since it needs no key."""

    name: str
    """The adapter's name, which is also an alias of its model."""
    model: str
    """What the provider calls the model."""
    kind: Kind = "chat"
    """What the model is for."""
    options: Mapping[str, Json] = {}
    """The adapter's `AdapterConfig.options`."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One provider, or one protocol that many providers speak."""

    name: str
    """The name of the folder, which is the `type` of its adapters in models.yaml."""
    adapter: str
    """The place of its adapter: a class, or a function that makes one."""
    kinds: tuple[Kind, ...] = ("chat",)
    """What its adapter serves: the interfaces of `adapters.contract`, `embeddings`, `images` and `videos`."""

    # -- the environment

    key_variables: tuple[str, ...] = ()
    """The environment variables that may hold its key, the usual one first. Empty: none is looked for."""
    base_url_variable: str | None = None
    """The environment variable that may hold another address, which the vendor's own library reads as well."""
    expected: bool = False
    """Without a models.yaml it is listed also while its key is missing, as not configured."""
    precedence: int = 100
    """The provider with the least number is taken where several have a key and nobody has chosen."""
    presets: tuple[Preset, ...] = ()
    """Adapters that are there without a configuration."""
    runs_here: bool = False
    """Its models run on this machine, so that asking after its health needs no network."""

    # -- whose a key is

    home: str | None = None
    """The host that gets the key where no address is configured. None: any key may go there."""
    key_words: tuple[str, ...] = ()
    """Words of an environment variable's name that mean a key for `home`."""

    # -- its models

    models: str | None = None
    """The module that has the table of its models as `TABLE`, and `find_model`. None: there is no table."""
    rates: str | None = None
    """The file of rates that estimates of tokens go by. None: the usual rates."""
    vocabulary: str | None = None
    """The vocabulary that is nearest to models whose names tell none. None: the usual one."""

    # -- its names elsewhere

    vendor: Vendor | None = None
    """Whose models they are. None: that depends on the address, or is not known."""
    vendor_of: str | None = None
    """The place of a function that tells a vendor's name by `AdapterConfig`'s options and address."""
    other_vendors: tuple[Vendor, ...] = ()
    """Further vendors that are reached by its protocol."""

    @property
    def package(self) -> str:
        """The import name of the provider's folder."""
        return f"{_FOLDERS}.{self.name}"

    @property
    def adapter_name(self) -> str:
        """The name of the adapter's class, or of the function that makes one."""
        return self.adapter.partition(":")[2]

    def load(self, place: str) -> object:
        """The object at a place in the provider's folder. It is imported at its first use."""
        return _load(self.package, place)

    def data(self, file: str) -> bytes:
        """A data file of the provider's folder."""
        return package_data(self.package, file)

    def vendor_name(self, options: Mapping[str, Json], base_url: str | None) -> str | None:
        """The vendor of an adapter's models, by its name in price tables; None if it is not known.

        Args:
            options: The adapter's `AdapterConfig.options`.
            base_url: The adapter's address, if one is configured.
        """
        found: str | None = None
        if self.vendor_of is not None:
            found = cast("_VendorOf", self.load(self.vendor_of))(options, base_url)
        return found or (None if self.vendor is None else self.vendor.name)


@cache
def _load(package: str, place: str) -> object:
    module, _, attribute = place.partition(":")
    found: object = import_module(f"{package}.{module}")
    return getattr(found, attribute) if attribute else found


@cache
def providers() -> tuple[Provider, ...]:
    """All providers, by their precedence and then by their names."""
    folders = import_module(_FOLDERS)
    found: list[Provider] = [
        import_module(f"{_FOLDERS}.{folder.name}").PROVIDER
        for folder in iter_modules(folders.__path__)
        if folder.ispkg
    ]
    return tuple(sorted(found, key=lambda provider: (provider.precedence, provider.name)))


@cache
def _by_name() -> Mapping[str, Provider]:
    return {provider.name: provider for provider in providers()}


def provider_named(name: str) -> Provider | None:
    """The provider of that name; None if there is none."""
    return _by_name().get(name)


@cache
def vendors() -> tuple[Vendor, ...]:
    """All vendors that descriptors name."""
    own = [provider.vendor for provider in providers() if provider.vendor is not None]
    return (*own, *(vendor for provider in providers() for vendor in provider.other_vendors))


def published_vendor(name: str) -> str:
    """Our name of a vendor, by the one in the published prices of genai-prices."""
    return _published().get(name, name)


@cache
def _published() -> Mapping[str, str]:
    return {vendor.genai_prices: vendor.name for vendor in vendors() if vendor.genai_prices is not None}
