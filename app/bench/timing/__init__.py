"""How long something takes, and where the time goes."""
