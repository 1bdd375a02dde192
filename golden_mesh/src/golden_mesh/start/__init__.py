"""What comes before the first call: machines, the runtime root, the command line, and what of ttnn is replaced."""
