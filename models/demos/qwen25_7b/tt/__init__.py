"""What runs on the chips: one module a file, each forward a list of ttnn calls."""
