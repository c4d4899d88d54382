"""What each wire writes for the same request: one table for each phenomenon, expected bodies written by hand."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.cases")
