"""What stored calls cost under other prices, and the book of those acts."""
