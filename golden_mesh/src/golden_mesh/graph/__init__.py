"""Device operations of a program, from ttnn's graph capture: their tensors, bytes and launches."""
