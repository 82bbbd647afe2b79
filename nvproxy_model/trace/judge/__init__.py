"""A trace against a policy: the verdict of each call, and the calls through a session."""
