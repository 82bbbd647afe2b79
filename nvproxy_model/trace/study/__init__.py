"""What traces hold and how they differ."""
