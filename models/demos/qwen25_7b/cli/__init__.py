"""What every command of this folder shares: its options, its output, its end."""
