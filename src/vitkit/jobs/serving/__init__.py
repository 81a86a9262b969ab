"""The server behind `vitkit serve`: one model of `vitkit export`, many requests at once."""
