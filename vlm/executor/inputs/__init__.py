"""What a device is given: rows packed on the host, and the copies that take them there."""
