"""The modules on the chips. Each forward is a list of ttnn calls."""
