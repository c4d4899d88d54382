"""What is carried of each vendor's wire: the decisions, and the claims that they make."""
