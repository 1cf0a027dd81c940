"""A module of the user in the place of a model's attention: built, traced, checked and timed."""
