"""The keys of an adapter: where they come from, which of them a call uses, and which of them rest."""
