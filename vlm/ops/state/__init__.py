"""What the device keeps of each sequence between steps, in slots."""
