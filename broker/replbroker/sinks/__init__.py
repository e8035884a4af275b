"""What is written down of a broker's doings, for operators."""
