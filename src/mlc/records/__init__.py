"""Tuning records: what they hold, files of them, the best of them, and where a compilation looks for them."""
