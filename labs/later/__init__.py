"""kill -9 at programs with batches and background replies, at providers that keep books and lose answers."""
