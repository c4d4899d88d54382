"""What providers reply on each wire, and what becomes of it: one table for each phenomenon."""
