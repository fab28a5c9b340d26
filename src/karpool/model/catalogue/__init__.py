"""Instance types, offerings and prices, and the file that ships with Karpool. Start with `catalogue`."""
