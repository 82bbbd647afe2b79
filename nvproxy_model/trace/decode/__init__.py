"""What a recorded call says: names and fields, in one driver release."""
