"""What is printed and drawn from records."""
