"""The coverage of each vendor's wire: the decisions, and tests of their claims."""
