"""Sources that add room and limits that cap it. Start with `interface`, then `framework`."""
