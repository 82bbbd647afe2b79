"""From the driver's headers to layouts and constants, in confined processes."""
