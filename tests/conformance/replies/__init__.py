"""What providers reply on each wire, and what becomes of it: one table for each phenomenon."""

import pytest

pytest.register_assert_rewrite("tests.conformance.replies.cases", "tests.support.wires.reading")
