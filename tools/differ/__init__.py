"""The subcommands of nvproxy-differ, a module each."""
