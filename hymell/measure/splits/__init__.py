"""What is held out of each op's tables, one module per op."""
