"""What a device keeps of each sequence."""
