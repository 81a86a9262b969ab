"""Listings of a data set (folders, tables, Parquet, lists of splits), and how they are cut."""
