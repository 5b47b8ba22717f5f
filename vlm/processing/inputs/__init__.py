"""What callers give, and the requests that it comes to."""
