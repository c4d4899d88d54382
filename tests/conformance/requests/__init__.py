"""The bodies of the same request on each wire: one table for each phenomenon, with bodies written by hand."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.cases")
