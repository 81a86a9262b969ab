"""The tasks whose images teach by themselves: a part of each is hidden and predicted."""
