"""Sources that add capacity and limits that cap it. Start with `interface`, then `framework`."""
