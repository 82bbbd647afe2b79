"""A gVisor checkout: its nvproxy's Go structs and tables, against the drivers' headers and against this model."""
