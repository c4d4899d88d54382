"""kill -9 at programs that make batches, at a provider that keeps books and loses connections."""
