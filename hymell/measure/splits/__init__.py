"""What is held out of each op's tables, and which tables there are: one module per op."""
